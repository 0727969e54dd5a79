"""The tour of docs/tour.md: a grader changed and a replica killed while a run trains."""

import json
import re
from pathlib import Path

import pytest

from tests.operations.shell_walk import why_no_namespaces
from tests.operations.test_walk import clone
from tests.operations.tour import STAGES, tour

__all__ = ["clone"]
MOST_S = 900.0

pytestmark = [
    pytest.mark.timeout(MOST_S + 100),
    pytest.mark.skipif(why_no_namespaces() is not None, reason="no namespaces here, run as root"),
]


def test_a_grader_is_changed_and_a_replica_dies_while_a_run_trains(clone: Path) -> None:
    services, run, grader, kill, end = tour(clone, most_s=MOST_S)
    assert [one.name for one in (services, run, grader, kill, end)] == list(STAGES.values())
    before, after = (_last_step(one.said) for one in (run, grader))
    assert after["step"] > before["step"]
    assert abs(after["reward"] - before["reward"]) > 0.1, "the other grader says nothing else"
    assert "Nothing was lost." in kill.said
    assert re.search(r"kill +replica", kill.said)
    assert "run is stopped" in end.said or "stopped" in end.said


def _last_step(said: str) -> dict[str, float]:
    (line,) = [line for line in said.splitlines() if line.startswith('{"step"')]
    return dict(json.loads(line))
