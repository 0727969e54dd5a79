"""Copies pushes from the weight bus to the run's timeline."""

import asyncio

from services.orchestrator.fleet import Fleet
from services.orchestrator.observers.timeline import Timeline
from services.protocol.errors import NotReady
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import WeightBus

_LOOK_S = 2.0
_LAST_LOOK_S = 2.0


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
    record, seen = PushRecord(timeline, await _known(bus)), -1
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


async def _known(bus: WeightBus) -> tuple[VersionRecord, ...]:
    """The pushes that the bus knows when it first answers."""
    while True:
        try:
            return await bus.versions()
        except NotReady:
            await asyncio.sleep(_LOOK_S)
