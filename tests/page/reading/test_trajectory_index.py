"""A hundred thousand trajectories: what is looked at again and again reads only what is new."""

import json
from pathlib import Path

import pytest

from services.json_lines import JsonLines
from services.page.reading.trajectory_index import TrajectoryIndex, TrajectoryQuery

MANY = 100_000


class CountedLines(JsonLines):
    """Counts the lines that are decoded."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.decoded = 0

    def raw(self, start: int, stop: int) -> list[bytes]:
        found = super().raw(start, stop)
        self.decoded += len(found)
        return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "tokens.jsonl"
    with path.open("w") as file:
        for n in range(MANY):
            line = {"step": n // 100, "group": n // 4, "trajectory": n % 4, "reward": 1.0}
            file.write(json.dumps(line | {"tokens": 5, "verdict": "accepted"}) + "\n")
    return path


def test_one_of_a_hundred_thousand_is_found_by_reading_it_alone(many: Path) -> None:
    lines = CountedLines(many)
    index = TrajectoryIndex(lines)
    assert index.look() == MANY
    assert lines.decoded == MANY
    total, numbers = index.find(TrajectoryQuery(step=500, limit=3))
    assert (total, numbers) == (100, [50_099, 50_098, 50_097])
    assert index.read(numbers[0])["group"] == 50_099 // 4
    assert lines.decoded == MANY + 1


def test_what_is_appended_is_all_that_is_read_then(many: Path) -> None:
    lines = CountedLines(many)
    index = TrajectoryIndex(lines)
    index.look()
    with many.open("a") as file:
        file.write('{"step": 9999, "group": 1, "reward": 0.0, "tokens": 1}\n')
    assert index.find(TrajectoryQuery(step=9999)) == (1, [MANY])
    assert lines.decoded == MANY + 1
