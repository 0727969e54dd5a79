"""Monitors a cluster and its run, and records their states."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from millrace_tools.chaos.observation import Audit, Leases, Observation, Progress
from millrace_tools.client.runs_client import ENDED
from services.peers import bus_peer
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunStatus

T = TypeVar("T")
POLL_S = 0.25
AUDIT_S = 1.0


@dataclass(kw_only=True)
class Monitor:
    """Three loops: over the member table, the run and its ledger.

    Attributes:
        observation: receives the entries.
        clock: seconds since the campaign began.
        status: asks the orchestrator; raises `NotReady` or `InvalidInput` if it is down.
        audit: reads the ledger by another connection: by how much it is off, and how many
            prompts were skipped; raises `InvalidInput` if it cannot be read.
        run_over: the run has ended.
    """

    observation: Observation
    clock: Callable[[], float]
    status: Callable[[], RunStatus]
    audit: Callable[[], tuple[int, int]]
    run_over: bool = False

    async def leases(self) -> None:
        """Follow the member table until cancelled."""
        bus, revision = bus_peer(), -1
        while True:
            try:
                table = await bus.watch(revision, POLL_S)
            except NotReady:
                revision = -1
                await asyncio.sleep(POLL_S)
                continue
            revision = table.revision
            self.observation.leases.append(
                Leases(
                    at_s=self.clock(),
                    leased=frozenset(member.replica_id for member in table.leased),
                    newest_version=table.newest_version,
                    bus_id=table.bus_id,
                    states=frozenset(member.state for member in table.members),
                )
            )

    async def progress(self) -> None:
        """Ask the orchestrator until cancelled."""
        async for status in _answers(self.status, POLL_S):
            self.run_over = status.state in ENDED
            self.observation.progress.append(
                Progress(
                    at_s=self.clock(),
                    state=status.state,
                    step=status.step,
                    ledger=status.ledger,
                    detail=status.detail,
                )
            )

    async def ledger(self) -> None:
        """Audit the ledger until cancelled."""
        async for off, skipped in _answers(self.audit, AUDIT_S):
            self.observation.audits.append(Audit(at_s=self.clock(), off=off, skipped=skipped))


async def _answers(ask: Callable[[], T], pause_s: float) -> AsyncIterator[T]:
    """The answer of every call that succeeds, with a pause after each."""
    while True:
        with suppress(NotReady, InvalidInput):
            yield await asyncio.to_thread(ask)
        await asyncio.sleep(pause_s)
