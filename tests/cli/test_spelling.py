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


def _fix(data: dict[str, object]) -> str:
    with pytest.raises(InvalidInput) as refused:
        RunConfig.from_data(data, source="run.yaml")
    return refused.value.fix
