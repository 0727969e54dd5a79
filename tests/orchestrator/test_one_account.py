"""Ledger, metrics and traces say the same of every sample group, however a run went."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from services.observability.metrics import RunMetrics
from services.orchestrator.observers import group_telemetry
from services.protocol.run.orchestrator import RunState
from tests.orchestrator.random_schedule import draw, play

pytestmark = pytest.mark.usefixtures("no_drawing")
ENDINGS = ("trained", "filtered", "expired", "failed")


@dataclass
class Seen:
    """Endings of groups, as metrics and as spans tell them."""

    metrics: Counter[str] = field(default_factory=Counter)
    spans: Counter[str] = field(default_factory=Counter)
    reopened: int = 0


class GroupSpan:
    """A span that is counted by its ending when it ends."""

    traceparent = ""

    def __init__(self, name: str, seen: Seen) -> None:
        self.headers: dict[str, str] = {}
        self._name, self._seen, self._ending = name, seen, ""

    def set(self, ending: str = "", **_: Any) -> None:
        self._ending = ending or self._ending

    def fail(self, reason: str) -> None: ...

    def event(self, name: str, **_: Any) -> None: ...

    def end(self) -> None:
        if self._name == "group":
            self._seen.spans[self._ending] += 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()

    def count(value: float, tags: dict[str, str]) -> None:
        seen.metrics[tags["status"]] += int(value)

    def reopen(value: float, tags: dict[str, str]) -> None:
        seen.reopened += int(value)

    monkeypatch.setattr(RunMetrics.groups, "inc", count)
    monkeypatch.setattr(RunMetrics.groups_reopened, "inc", reopen)
    monkeypatch.setattr(group_telemetry.tracing, "is_on", lambda: True)
    monkeypatch.setattr(
        group_telemetry.tracing, "begin", lambda name, *_, **__: GroupSpan(name, seen)
    )
    return seen


@pytest.mark.parametrize("seed", range(24))
def test_ledger_metrics_and_traces_agree_on_how_groups_ended(
    tmp_path: Path, seen: Seen, seed: int
) -> None:
    plan = draw(seed)
    plan = replace(plan, weather=replace(plan.weather, killed_s=None))
    _, status = play(plan, tmp_path)
    assert status.state is RunState.FINISHED
    ledger = {ending: getattr(status.ledger, ending) for ending in ENDINGS}
    again = Counter(trained=seen.reopened)
    assert {ending: seen.metrics[ending] - again[ending] for ending in ENDINGS} == ledger
    assert {ending: seen.spans[ending] - again[ending] for ending in ENDINGS} == ledger
    assert seen.spans["in_flight"] == status.ledger.in_flight == 0
