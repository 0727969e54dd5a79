"""Looks at a cluster and its run all the time, and notes what it sees."""

import asyncio
from collections.abc import Callable

from millrace_tools.chaos.observation import Audit, Leases, Observation, Progress
from services.peers import bus_peer
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunState, RunStatus

LOOK_S = 0.25
AUDIT_S = 1.0
ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


class Watch:
    """Three lookers: at the member table, at the run and at its ledger.

    Attributes:
        run_over: the run has ended.
    """

    def __init__(
        self,
        seen: Observation,
        clock: Callable[[], float],
        status: Callable[[], RunStatus],
        audit: Callable[[], tuple[int, int]],
    ) -> None:
        """Watch into `seen`.

        Args:
            seen: where it is noted.
            clock: seconds since the campaign began.
            status: asks the orchestrator; raises `NotReady` or `InvalidInput` where it is away.
            audit: reads the ledger by another connection: by how much it is off, and how many
                prompts were skipped; raises `InvalidInput` where it cannot be read.
        """
        self._seen, self._clock, self._status, self._audit = seen, clock, status, audit
        self.run_over = False

    async def leases(self) -> None:
        """Follow the member table until cancelled."""
        bus, revision = bus_peer(), -1
        while True:
            try:
                table = await bus.watch(revision, LOOK_S)
            except NotReady:
                revision = -1
                await asyncio.sleep(LOOK_S)
                continue
            revision = table.revision
            sight = Leases(
                at_s=self._clock(),
                leased=frozenset(member.replica_id for member in table.leased),
                newest_version=table.newest_version,
                bus_id=table.bus_id,
            )
            self._seen.leases.append(sight)

    async def progress(self) -> None:
        """Ask the orchestrator until cancelled."""
        while True:
            try:
                status = await asyncio.to_thread(self._status)
            except (NotReady, InvalidInput):
                await asyncio.sleep(LOOK_S)
                continue
            self.run_over = status.state in ENDED
            self._seen.progress.append(
                Progress(
                    at_s=self._clock(),
                    state=status.state,
                    step=status.step,
                    ledger=status.ledger,
                    detail=status.detail,
                )
            )
            await asyncio.sleep(LOOK_S)

    async def ledger(self) -> None:
        """Audit the ledger until cancelled."""
        while True:
            try:
                off, skipped = await asyncio.to_thread(self._audit)
            except InvalidInput:
                await asyncio.sleep(AUDIT_S)
                continue
            self._seen.audits.append(Audit(at_s=self._clock(), off=off, skipped=skipped))
            await asyncio.sleep(AUDIT_S)
