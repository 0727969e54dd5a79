"""What is said of a key that there is not."""

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig

RUN = {"name": "a", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}
TASKS = [{"file": "tasks.jsonl"}]


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"stepz": 1}, "No such key; the nearest is steps."),
        ({"samples": 2}, "No such key here; it belongs to evaluation or evaluation.sets."),
        ({"sampling": {"steps": 1}}, "No such key here; it belongs to the top level."),
        ({"algorithm": {"kl": {"coeficient": 1}}}, "No such key; the nearest is coefficient."),
        ({"colour": "red"}, "No such key; check its spelling and its place."),
    ],
)
def test_the_nearest_key_or_the_right_place_is_named(changes: dict[str, object], fix: str) -> None:
    assert _fix(RUN | {"tasks": TASKS} | changes) == fix


@pytest.mark.parametrize(
    ("grader", "fix"),
    [
        ({"kind": "maths", "expected": "3", "stric": True}, "the nearest is strict."),
        ({"kind": "regex", "pattern": "3", "expected": "3"}, "check its spelling and its place."),
        (
            {"kind": "code", "language": "python", "tests": [{"stdin": "1", "expectd": "3"}]},
            "the nearest is expected.",
        ),
    ],
)
def test_of_a_union_only_the_member_that_is_meant_counts(
    grader: dict[str, object], fix: str
) -> None:
    assert _fix(RUN | {"tasks": [TASKS[0] | {"grader": grader}]}).endswith(fix)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"algorithm": {"preset": "dapoo"}}, "dapo"),
        ({"algorithm": {"preset": "GRPO"}}, "grpo"),
        ({"algorithm": {"preset": "reinforce++"}}, "reinforce_plus_plus"),
        ({"algorithm": {"loss": "clipp"}}, "clip"),
        ({"schedule": {"preset": "one-step-off"}}, "one_step_off"),
        ({"trackers": ["wandd"]}, "wandb"),
    ],
)
def test_an_unknown_choice_gets_all_that_are_known_and_the_nearest(
    changes: dict[str, object], named: str
) -> None:
    fix = _fix(RUN | {"tasks": TASKS} | changes)
    assert fix.endswith(f"; the nearest is {named}.")
    assert fix.count(named) >= 2


def test_a_choice_that_is_near_none_gets_the_list_alone() -> None:
    fix = _fix(RUN | {"tasks": TASKS, "schedule": {"preset": "fast"}})
    assert "'sync'" in fix
    assert "nearest" not in fix


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"group_size": 1}, "run.yaml: group_size", 1),
        ({"evaluation": {"sets": {"hard": {}}}}, "run.yaml: evaluation.sets", "hard"),
        ({"trackers": ["wandb", "wandb"]}, "run.yaml: trackers", ["wandb", "wandb"]),
    ],
)
def test_a_rule_across_keys_names_the_key_to_change(
    changes: dict[str, object], field: str, value: object
) -> None:
    with pytest.raises(InvalidInput) as refused:
        RunConfig.from_data(RUN | {"tasks": TASKS} | changes, source="run.yaml")
    assert (refused.value.field, refused.value.value) == (field, value)


def _fix(data: dict[str, object]) -> str:
    with pytest.raises(InvalidInput) as refused:
        RunConfig.from_data(data, source="run.yaml")
    return refused.value.fix
