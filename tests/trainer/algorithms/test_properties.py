"""What holds for every input, and the numbers of the small functions worked out by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.protocol.run.algorithm import LOSSES, AlgorithmConfig
from services.trainer.algorithms.advantages.advantages import batch_advantages, group_advantages
from services.trainer.algorithms.advantages.dapo import overlong_penalty
from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.aggregation import token_shares
from services.trainer.algorithms.losses.kl import k1, k2, k3
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.tokens import ScoredTokens

REWARDS = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=2, max_size=9)
KINDS = ("grpo", "dr_grpo", "rloo")


@given(rewards=REWARDS, shift=st.integers(-8, 8))
@pytest.mark.parametrize("kind", KINDS)
def test_group_advantages_sum_to_zero_and_forget_a_shift(kind, rewards, shift) -> None:
    values = group_advantages(rewards, kind)
    assert math.fsum(values) == pytest.approx(0.0, abs=1e-9)
    assert group_advantages([r + shift for r in rewards], kind) == pytest.approx(values, abs=1e-9)


@given(rewards=REWARDS)
def test_rloo_is_the_reward_less_the_mean_of_the_others(rewards) -> None:
    expected = [
        r - math.fsum(rewards[:i] + rewards[i + 1 :]) / (len(rewards) - 1)
        for i, r in enumerate(rewards)
    ]
    assert group_advantages(rewards, "rloo") == pytest.approx(expected, abs=1e-9)


@given(groups=st.lists(REWARDS, min_size=1, max_size=4), seed=st.integers(0, 99))
@pytest.mark.parametrize("baseline", [False, True])
def test_reinforce_plus_plus_has_mean_zero_and_variance_one_over_tokens(
    baseline, groups, seed
) -> None:
    counts = [[1 + (seed + 7 * i + 3 * j) % 5 for j in range(len(g))] for i, g in enumerate(groups)]
    kind = "reinforce_plus_plus_baseline" if baseline else "reinforce_plus_plus"
    values = batch_advantages(groups, counts, kind)
    tokens = [v for g, c in zip(values, counts, strict=True) for v, n in zip(g, c, strict=True)
              for _ in range(n)]  # fmt: skip
    assert math.fsum(tokens) / len(tokens) == pytest.approx(0.0, abs=1e-6)
    if max(tokens) - min(tokens) > 1e-3:
        assert math.fsum(v * v for v in tokens) / len(tokens) == pytest.approx(1.0)


def test_reinforce_plus_plus_by_hand() -> None:
    # tokens 1, 1, 1, 0: mean 3/4, variance 3/16
    values = batch_advantages([[1.0, 0.0]], [[3, 1]], "reinforce_plus_plus")
    assert values == [pytest.approx([0.25 / math.sqrt(3 / 16), -0.75 / math.sqrt(3 / 16)])]


def test_the_overlong_penalty_is_a_line_between_its_ends() -> None:
    lengths = (1, 6, 7, 8, 10, 11)
    values = [overlong_penalty(length, limit=10, buffer=4) for length in lengths]
    assert values == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert [overlong_penalty(n, limit=10, buffer=0) for n in (10, 11)] == [0.0, -1.0]


LOGPROB = st.floats(-6, -0.01)


@st.composite
def batches(draw: Any) -> dict[str, torch.Tensor]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    count = sum(lengths)
    columns = {
        name: torch.tensor(draw(st.lists(LOGPROB, min_size=count, max_size=count))).double()
        for name in ("current", "behaviour", "proximal")
    }
    advantages = draw(st.lists(st.floats(-2, 2), min_size=len(lengths), max_size=len(lengths)))
    sequence = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)])
    return columns | {
        "sequence": sequence,
        "advantage": torch.tensor(advantages).double()[sequence],
    }


def loss_of(batch: dict[str, torch.Tensor], keep: torch.Tensor, algorithm: AlgorithmConfig):
    """Undivided loss and gradient of the kept sequences, laid out as if there were no others."""
    current = batch["current"][keep].clone().requires_grad_()
    parts = {name: values[keep] for name, values in batch.items() if name != "current"}
    _, parts["sequence"] = parts["sequence"].unique(return_inverse=True)
    count = int(parts["sequence"].max()) + 1
    tokens = ScoredTokens(current=current, sequences=count, **parts)
    losses = policy_losses(tokens, algorithm).tokens.loss
    lengths = tokens.sequence.bincount().double()
    shares = token_shares(torch.ones_like(losses), tokens.sequence, lengths, algorithm.aggregation)
    total = (losses * shares).sum()
    total.backward()
    return total.item(), current.grad


@settings(max_examples=25)
@given(batch=batches())
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("loss", LOSSES)
def test_parts_of_a_batch_add_up_to_the_whole(loss, level, batch) -> None:
    algorithm = AlgorithmConfig(
        loss=loss, aggregation="sequence_mean", ratio_anchor="proximal", mismatch_level=level
    )
    everything = torch.ones_like(batch["sequence"], dtype=torch.bool)
    whole, gradient = loss_of(batch, everything, algorithm)
    parts = [batch["sequence"] == i for i in range(int(batch["sequence"].max()) + 1)]
    done = [loss_of(batch, part, algorithm) for part in parts]
    assert math.fsum(value for value, _ in done) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    assert torch.cat([part for _, part in done]).tolist() == pytest.approx(gradient.tolist())


@settings(max_examples=25)
@given(batch=batches())
@pytest.mark.parametrize("loss", LOSSES)
def test_on_policy_every_loss_has_the_gradient_of_reinforce(loss, batch) -> None:
    batch = batch | {"behaviour": batch["current"], "proximal": batch["current"]}
    everything = torch.ones_like(batch["sequence"], dtype=torch.bool)
    for anchor in ("behaviour", "proximal"):
        algorithm = AlgorithmConfig(loss=loss, ratio_anchor=anchor)
        _, gradient = loss_of(batch, everything, algorithm)
        assert gradient.tolist() == pytest.approx((-batch["advantage"]).tolist())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_impossible_ratios_stay_finite_in_float32(loss, level) -> None:
    algorithm = AlgorithmConfig(loss=loss, ratio_anchor="proximal", mismatch_level=level,
                                mismatch_correction="mask", mismatch_cap=1e30)  # fmt: skip
    current = torch.tensor([-0.1, -400.0, -300.0], requires_grad=True)
    tokens = ScoredTokens(
        current=current,
        behaviour=torch.tensor([-500.0, -0.1, -0.2]),
        proximal=torch.tensor([-250.0, -200.0, -0.1]),
        advantage=torch.tensor([-1.0, 1.0, -1.0]),
        sequence=torch.tensor([0, 0, 1]),
        sequences=2,
    )
    losses = policy_losses(tokens, algorithm).tokens.loss
    losses.sum().backward()
    assert losses.isfinite().all()
    assert current.grad.isfinite().all()


def test_a_ratio_is_exact_within_its_limits() -> None:
    logs = torch.tensor([-19.5, -1.0, 0.0, 3.0, 19.5, 25.0, -25.0], dtype=torch.float64)
    expected = [math.exp(max(-20.0, min(20.0, x))) for x in logs.tolist()]
    assert ratio_of(logs).tolist() == pytest.approx(expected, rel=1e-12)


def test_kl_estimates_have_the_right_expectations_and_gradients() -> None:
    logits = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).log()
    current = logits.log_softmax(0)
    policy = current.exp().detach()
    reverse = float((policy * (current - other)).sum().detach())
    assert float((policy * k1(current, other)).sum().detach()) == pytest.approx(reverse)
    assert float((policy * k3(current, other)).sum().detach()) == pytest.approx(reverse)
    reverse_gradient = policy * ((current - other).detach() - reverse)
    forward_gradient = policy - other.exp()
    for estimate, expected in ((k1, 0 * policy), (k2, reverse_gradient), (k3, forward_gradient)):
        (policy * estimate(logits.log_softmax(0), other)).sum().backward()
        assert logits.grad.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
        logits.grad = None


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"loss": "clipp"}, "file.py:function"),
        ({"loss": "my_loss.py:"}, "file.py:function"),
        ({"aggregation": "fixed_length"}, "fixed_length goes with"),
        ({"fixed_length": 9}, "fixed_length goes with"),
        ({"mismatch_level": "sequence"}, "ratio_anchor: proximal"),
        ({"mismatch_correction": "mask"}, "ratio_anchor: proximal"),
        (
            {"ratio_anchor": "proximal", "mismatch_correction": "none", "mismatch_floor": 0.5},
            "mismatch_correction: truncate or mask",
        ),
        ({"mismatch_cap": 5.0}, "ratio_anchor: proximal"),
        (
            {"ratio_anchor": "proximal", "mismatch_correction": "none", "mismatch_cap": 7.0},
            "mismatch_correction: truncate or mask",
        ),
        (
            {
                "ratio_anchor": "proximal",
                "mismatch_correction": "none",
                "mismatch_level": "geometric",
            },
            "mismatch_correction: truncate or mask",
        ),
        ({"sequence_mask": {"geometric_cap": 1.1}}, "ratio_anchor: proximal"),
        ({"loss": "gspo", "dual_clip": 10.0}, "loss: clip or dppo"),
        ({"kl": {"where": "reward", "estimator": "k1"}}, "need a coefficient above 0"),
        ({"kl": {"coefficient": 0.0, "weighted": True}}, "need a coefficient above 0"),
        ({"distillation": {"teacher": "t", "beta": 0.9}}, "divergence: jensen_shannon"),
        ({"gate_negative": 2.0}, "loss: sapo"),
        ({"advantage": "maxrl", "overlong_limit": 9}, "leave overlong_limit out"),
        ({"loss": "reinforce", "passes": 2}, "passes: 1"),
        ({"kl": {"coefficient": 0.1, "refresh_mix": 0.5}}, "needs refresh_steps"),
        ({"overlong_buffer": 5}, "overlong_limit"),
        ({"preset": "ppp"}, "preset"),
        ({"preset": "dr_grpo"}, "fixed_length goes with"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(given: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        AlgorithmConfig(**given)


def test_a_loss_of_the_user_may_read_the_dual_clip() -> None:
    assert AlgorithmConfig(loss="mine.py:loss", dual_clip=10.0).dual_clip == 10.0
    assert AlgorithmConfig(loss="gspo", dual_clip=None).dual_clip is None


def test_a_preset_fills_in_and_what_is_given_wins() -> None:
    assert AlgorithmConfig(preset="gspo").clip_high == 4e-4
    mine = AlgorithmConfig(preset="rloo", aggregation="token_mean", clip_low=0.1)
    assert (mine.advantage, mine.aggregation, mine.clip_low) == ("rloo", "token_mean", 0.1)
    assert AlgorithmConfig.model_validate(mine.model_dump()) == mine
