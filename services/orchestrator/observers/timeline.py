"""The timeline of a run: one JSON line a span."""

import asyncio
import time
from pathlib import Path
from typing import Any

from services.orchestrator.core.events import Event, GroupSampled, GroupScored, Idle
from services.orchestrator.core.schedule import Slots
from services.orchestrator.fleet import Fleet
from services.orchestrator.run_folder.journal import Journal
from services.protocol.errors import NotReady
from services.protocol.trainer import TrainReport
from services.protocol.trajectory import Trajectory
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import WeightBus
from services.retry import retrying

MOST_BYTES = 48 * 1024 * 1024
"""Of each of two files: a full one becomes `timeline.1.jsonl`, so that the newest stays."""
_SLOTS_S = 0.2
_LOOK_S = 2.0
_LAST_LOOK_S = 2.0


class Timeline:
    """Appends spans: `lane`, `kind`, `start` and `end` in seconds since 1970, and more.

    | lane | kinds |
    |---|---|
    | `replica ID` | `generate` (of one group), `push` |
    | `sandbox ID` | `score` |
    | `trainer N` | `forward_backward`, `optimizer`, `snapshot`, `critic`: sums, laid end to end |
    | `trainer` | `train`, `checkpoint`, and `wait` with its `cause` |
    | `turn` | `turn` of the trainer on shared devices: from the order for them to their return |
    | `evaluation` | `evaluate` |
    | `slots` | `slots`: what admission slots were used for from `start` on |

    A disk that is full costs spans, never the run.
    """

    def __init__(self, path: Path, *, max_bytes: int = MOST_BYTES) -> None:
        self._journal = Journal(path, max_bytes=max_bytes, turns=True)
        self._waiting: tuple[str, float] | None = None
        self._slots: tuple[Slots, float] | None = None

    def span(self, lane: str, kind: str, start: float, end: float, **known: Any) -> None:
        """Add a span."""
        fields = {name: value for name, value in known.items() if value not in (None, "")}
        times = {"start": round(start, 4), "end": round(end, 4)}
        self._journal.add({"lane": lane, "kind": kind, **times, **fields})

    def _trainer_waits(self, cause: str | None) -> None:
        """From now on the trainer waits for this; None: it works."""
        now = time.time()
        if self._waiting is not None:
            before, since = self._waiting
            if before == cause:
                return
            self.span("trainer", "wait", since, now, cause=before)
        self._waiting = (cause, now) if cause is not None else None

    def _slots_are(self, slots: Slots) -> None:
        """Admission slots are used like this from now on; short-lived uses are left out."""
        now = time.time()
        if self._slots is not None:
            before, since = self._slots
            if before == slots or now - since < _SLOTS_S:
                return
        self._slots = slots, now
        self.span("slots", "slots", now, now, **vars(slots))

    def on(self, event: Event) -> None:
        """See `Observer`."""
        match event:
            case GroupSampled():
                self._sampled(event)
            case GroupScored():
                self._scored(event)
            case Idle(trainer=cause, slots=slots):
                self._trainer_waits(cause)
                self._slots_are(slots)

    def _sampled(self, event: GroupSampled) -> None:
        """Spans of a group's answers: from its request to the last answer of each replica."""
        by_replica: dict[str, list[tuple[float, Trajectory]]] = {}
        for at, trajectory in event.arrivals:
            for replica_id in {span.replica_id for span in trajectory.spans}:
                by_replica.setdefault(replica_id, []).append((at, trajectory))
        for replica_id, came in by_replica.items():
            self.span(
                f"replica {replica_id}",
                "generate",
                event.began_at,
                max(at for at, _ in came),
                group=event.group_id,
                answers=len(came),
                tokens=sum(len(one.response_token_ids) for _, one in came),
                oldest=min(one.oldest_version for _, one in came),
                newest=max(one.newest_version for _, one in came),
            )

    def _scored(self, event: GroupScored) -> None:
        """Spans of the sandboxes that ran a group's answers."""
        for score in event.scores:
            for use in score.uses:
                end = use.began_at + use.seconds
                lane = f"sandbox {use.sandbox}"
                verdict = str(score.verdict)
                self.span(lane, "score", use.began_at, end, group=event.group_id, verdict=verdict)

    def trained(self, report: TrainReport, started: float, seconds: float) -> None:
        """Spans of a train step: the call, and the phases of each rank."""
        self.span(
            "trainer",
            "train",
            started,
            started + seconds,
            step=report.step,
            version=report.policy_version,
        )
        for rank, phases in enumerate(report.rank_seconds):
            at = started
            for phase, took in phases.items():
                self.span(f"trainer {rank}", phase, at, at + took, step=report.step)
                at += took

    def flush(self) -> None:
        """Write buffered lines to the file."""
        self._journal.flush()

    def close(self) -> None:
        """Close the files."""
        self._trainer_waits(None)
        self._journal.close()


class PushRecord:
    """Writes each outcome of a push once.

    Args:
        before: pushes that the bus knew when the run began: those of another run, or those that
            this run wrote under an earlier orchestrator.
    """

    def __init__(self, timeline: Timeline, before: tuple[VersionRecord, ...]) -> None:
        self._timeline = timeline
        self._written = {
            (outcome.replica_id, record.version, outcome.at)
            for record in before
            for outcome in record.outcomes
        }

    def write(self, records: tuple[VersionRecord, ...]) -> None:
        """Add new outcomes; an outcome without a known start begins at its end."""
        seen = set()
        for record in records:
            for outcome in record.outcomes:
                key = outcome.replica_id, record.version, outcome.at
                seen.add(key)
                if key in self._written:
                    continue
                # A push to a replica that joins late begins later than the version was published.
                took = outcome.seconds if outcome.seconds is not None else 0.0
                self._timeline.span(
                    f"replica {outcome.replica_id}",
                    "push",
                    outcome.at - took,
                    outcome.at,
                    version=record.version,
                    published=record.published_at,
                    stage_s=outcome.stage_s,
                    commit_s=outcome.commit_s,
                    paused_s=outcome.paused_s,
                    error=outcome.error,
                )
        self._written = seen  # what the bus has forgotten does not come again


async def follow_pushes(bus: WeightBus, fleet: Fleet, timeline: Timeline) -> None:
    """Ask the bus after every change of served versions until cancelled, and once at the end."""
    known = await retrying(bus.versions, pauses=[_LOOK_S])
    record, seen = PushRecord(timeline, known), -1
    try:
        while True:
            if fleet.pushes != seen:
                seen = fleet.pushes
                try:
                    record.write(await bus.versions())
                except NotReady:
                    seen = -1
            await asyncio.sleep(_LOOK_S)
    finally:
        try:
            async with asyncio.timeout(_LAST_LOOK_S):
                record.write(await bus.versions())
        except (NotReady, TimeoutError):
            pass  # the last pushes stay unseen
