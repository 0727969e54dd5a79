"""A teacher's advantage makes the policy gradient that of minus the divergence."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.distillation import DistillationConfig
from services.trainer.algorithms.advantages.distillation import distillation_advantage
from services.trainer.batch.collate import collate
from services.trainer.step.credit import Prepared, assign_credit
from tests.trainer.test_collate import rows_of

TEACHER = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
START = torch.tensor([0.3, -0.2, 0.9, -1.1], dtype=torch.float64)


def divergence(policy: torch.Tensor, teacher: torch.Tensor, how: DistillationConfig) -> Any:
    """By its definition, over all tokens."""
    if how.divergence == "reverse_kl":
        return (policy * (policy / teacher).log()).sum()
    mixture = how.beta * teacher + (1 - how.beta) * policy
    to_teacher = (teacher * (teacher / mixture).log()).sum()
    return how.beta * to_teacher + (1 - how.beta) * (policy * (policy / mixture).log()).sum()


@pytest.mark.parametrize(
    "how",
    [
        {"divergence": "reverse_kl"},
        {"divergence": "jensen_shannon", "beta": 0.1},
        {"divergence": "jensen_shannon", "beta": 0.5},
        {"divergence": "jensen_shannon", "beta": 0.9},
    ],
)
def test_the_policy_gradient_goes_down_the_divergence(how: dict[str, Any]) -> None:
    distillation = DistillationConfig(teacher="t", **how)
    logits = START.clone().requires_grad_()
    divergence(logits.softmax(0), TEACHER, distillation).backward()
    wanted, found = logits.grad, START.clone().requires_grad_()
    logprobs = found.log_softmax(0)
    advantage = distillation_advantage(logprobs.detach(), TEACHER.log(), distillation)
    # The expectation over every token that the policy could sample
    (-(logprobs.detach().exp() * advantage * logprobs).sum()).backward()
    assert wanted is not None
    assert found.grad is not None
    torch.testing.assert_close(found.grad, wanted, atol=1e-12, rtol=1e-12)


def test_a_token_that_the_teacher_rules_out_has_a_bound() -> None:
    distillation = DistillationConfig(teacher="t")
    none = distillation_advantage(torch.tensor([-1.0]), torch.tensor([-9999.0]), distillation)
    assert none.tolist() == [-20.0]


@pytest.mark.parametrize("rewards", [0.0, 2.0])
def test_rewards_and_teacher_are_weighted(make_trajectory: Any, rewards: float) -> None:
    rows = rows_of(make_trajectory([1], [2, 3], [-1.0, -2.0]), advantages=(0.5,))
    micro = replace(collate(rows, held_version=0), teacher=torch.tensor([-1.5, -0.5]))
    algorithm = AlgorithmConfig.model_validate(
        {"distillation": {"teacher": "t", "coefficient": 0.1, "rewards": rewards}}
    )
    ((one,),) = assign_credit([[Prepared(rows=rows, micro=micro)]], None, algorithm, True)
    wanted = [rewards * 0.5 + 0.1 * -0.5, rewards * 0.5 + 0.1 * 1.5]
    assert one.micro.advantage.tolist() == pytest.approx(wanted)
