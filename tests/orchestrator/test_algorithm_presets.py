"""An algorithm's preset in a run file is the paper's whole choice, or says what it leaves."""

from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm_preset import ALGORITHM_PRESETS
from services.protocol.run.orchestrator import RunConfig

LEFT = {
    "on_policy_distillation": {"distillation": {"teacher": "large"}},
    "self_distillation": {"distillation": {"context": "A right answer: {solution}"}},
}
"""Keys without which a preset is no run."""

RUN = {"name": "r", "model": "m", "task_file": "t", "steps": 1, "batch_groups": 1, "group_size": 2}


def run(**keys: Any) -> RunConfig:
    return RunConfig.from_data(RUN | keys, source="run.yaml")


def test_dapo_is_clip_higher_token_mean_dynamic_sampling_and_the_overlong_penalty() -> None:
    found = run(algorithm={"preset": "dapo"}, sampling={"max_tokens": 20480})
    algorithm = found.algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.28)
    assert algorithm.aggregation == "token_mean"
    assert found.schedule.dynamic_sampling
    assert (algorithm.overlong_limit, algorithm.overlong_buffer) == (20480, 4096)


@pytest.mark.parametrize("longest", [4000, 4.0e3, "4000"])
def test_the_longest_answer_counts_however_it_is_written(longest: Any) -> None:
    found = run(algorithm={"preset": "dapo"}, sampling={"max_tokens": longest})
    assert found.sampling.max_tokens == found.algorithm.overlong_limit == 4000


def test_dapo_keeps_the_schedule_and_every_key_of_the_run_file() -> None:
    found = run(
        algorithm={"preset": "dapo", "overlong_limit": 100},
        schedule={"preset": "one_step_off", "dynamic_sampling": False},
    )
    assert (found.schedule.preset, found.schedule.max_staleness) == ("one_step_off", 1)
    assert not found.schedule.dynamic_sampling
    assert (found.algorithm.overlong_limit, found.algorithm.overlong_buffer) == (100, 0)
    without = run(algorithm={"preset": "dapo", "overlong_limit": None})
    assert without.algorithm.overlong_limit is None


@pytest.mark.parametrize(
    "keys",
    [
        {"environment": "external"},
        {"tasks": [{"file": "t", "environment": "/mine.py:play"}], "task_file": None},
    ],
)
def test_no_preset_punishes_episodes_whose_calls_are_each_as_long_as_an_answer(
    keys: dict[str, Any],
) -> None:
    found = run(algorithm={"preset": "dapo"}, **keys)
    assert (found.algorithm.overlong_limit, found.algorithm.overlong_buffer) == (None, 0)
    assert RunConfig.model_validate(found.model_dump(mode="json")) == found
    mine = run(algorithm={"preset": "dapo", "overlong_limit": 100}, **keys)
    assert mine.algorithm.overlong_limit == 100


def test_dr_grpo_divides_by_the_longest_answer() -> None:
    assert run(algorithm={"preset": "dr_grpo"}).algorithm.fixed_length == 256
    mine = run(algorithm={"preset": "dr_grpo", "aggregation": "token_mean"}).algorithm
    assert mine.fixed_length is None


@pytest.mark.parametrize("name", LEFT)
def test_a_distilled_run_learns_from_every_answer_of_its_teacher_alone(name: str) -> None:
    found = run(algorithm={"preset": name} | LEFT[name], group_size=1).algorithm
    assert found.distillation is not None
    assert found.distillation.teacher == ("large" if name.startswith("on") else "policy")
    assert not found.has_rewards
    assert found.learns_from_equal_rewards
    with pytest.raises(InvalidInput, match=r"algorithm\.distillation"):
        run(algorithm={"preset": name})


def test_a_run_file_changes_one_key_of_a_presets_distillation() -> None:
    keys = {"preset": "self_distillation", "distillation": {"context": "so", "rewards": 0.5}}
    taught = run(algorithm=keys).algorithm.distillation
    assert taught is not None
    assert (taught.teacher, taught.divergence, taught.rewards) == ("policy", "reverse_kl", 0.5)


STALE = [{"preset": "async"}, {"max_staleness": 1}]


@pytest.mark.parametrize("schedule", STALE)
def test_rloo_is_corrected_where_answers_can_be_stale(schedule: dict[str, Any]) -> None:
    assert run(algorithm={"preset": "rloo"}).algorithm.ratio_anchor == "behaviour"
    stale = run(algorithm={"preset": "rloo"}, schedule=schedule).algorithm
    assert (stale.ratio_anchor, stale.mismatch_correction) == ("proximal", "truncate")


@pytest.mark.parametrize("schedule", STALE)
def test_a_teachers_pull_starts_from_the_policy_as_it_is(schedule: dict[str, Any]) -> None:
    keys = {"preset": "on_policy_distillation", "distillation": {"teacher": "large"}}
    assert run(algorithm=keys).algorithm.ratio_anchor == "behaviour"
    assert run(algorithm=keys, schedule=schedule).algorithm.ratio_anchor == "proximal"
    with pytest.raises(InvalidInput, match=r"ratio_anchor.*its teacher.*set ratio_anchor"):
        run(algorithm=keys | {"ratio_anchor": "behaviour"}, schedule={"max_staleness": 2})


@pytest.mark.parametrize("schedule", STALE)
def test_a_loss_without_a_ratio_is_refused_where_nothing_corrects_it(
    schedule: dict[str, Any],
) -> None:
    reinforce = {"loss": "reinforce", "ratio_anchor": "behaviour"}
    with pytest.raises(InvalidInput, match=r"ratio_anchor.*set ratio_anchor: proximal"):
        run(algorithm=reinforce, schedule=schedule)
    assert run(algorithm=reinforce)
    with pytest.raises(InvalidInput, match=r"use minibatches: 1"):
        run(algorithm={"loss": "reinforce", "minibatches": 2})


IN_REWARD = {"coefficient": 0.1, "where": "reward", "estimator": "k1"}


def test_masked_tokens_are_refused_where_an_answer_pays_for_all_its_tokens_at_once() -> None:
    stream = {"preset": "stream"}
    with pytest.raises(InvalidInput, match=r"schedule\.on_stale.*Masked tokens pay no KL"):
        run(algorithm={"preset": "rloo", "kl": IN_REWARD}, schedule=stream)
    assert run(algorithm={"preset": "reinforce_plus_plus", "kl": IN_REWARD}, schedule=stream)
    assert run(algorithm={"preset": "rloo", "kl": {"coefficient": 0.1}}, schedule=stream)
    assert run(algorithm={"preset": "rloo", "kl": IN_REWARD}, schedule={"on_stale": "drop"})


@pytest.mark.parametrize("name", ALGORITHM_PRESETS)
def test_a_preset_alone_makes_a_run_that_is_resolved_only_once(name: str) -> None:
    found = run(algorithm={"preset": name} | LEFT.get(name, {}))
    again = RunConfig.model_validate(found.model_dump(mode="json"))
    assert again == found
    assert ALGORITHM_PRESETS[name].left


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": {"preset": "dapo"}, "sampling": 3},
        {"algorithm": {"preset": "dapo"}, "schedule": "fast"},
        {"algorithm": {"preset": ["dapo"]}},
        {"algorithm": {"preset": "dapo"}, "sampling": {"max_tokens": "long"}},
        {"algorithm": "dapo"},
    ],
)
def test_what_is_no_mapping_is_refused_as_without_a_preset(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"run\.yaml: (sampling|schedule|algorithm)"):
        run(**keys)


def test_the_policy_has_no_update_in_a_critics_first_train_steps() -> None:
    algorithm = {"preset": "ppo", "minibatches": 2, "passes": 2, "critic": {"warmup_steps": 3}}
    assert run(algorithm=algorithm, steps=10).updates == 28
    assert run(algorithm=algorithm, steps=2).updates == 0
