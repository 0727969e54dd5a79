"""The phases of a start-up."""

import time

import pytest

from services.observability.metrics import RolloutMetrics
from services.rollout_server.control.start_up import StartPhase, StartUp


def test_phases_add_up_and_none_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    exported: dict[str, float] = {}
    monkeypatch.setattr(
        RolloutMetrics.start_up, "set", lambda value, tags: exported.update({tags["phase"]: value})
    )
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = StartUp("r", began_at=7.0)
    for phase in (StartPhase.IMPORTS, StartPhase.ENGINE, StartPhase.ENGINE):
        clock.reached(phase)
        now[0] += 5.0
    assert clock.seconds == {StartPhase.IMPORTS: 3.0, StartPhase.ENGINE: 5.0}
    assert exported == {"imports": 3.0, "engine": 5.0}
