"""The reports of one replica's update: waits for the right one and drops late ones."""

import asyncio

from services.observability.metrics import BusMetrics
from services.protocol.weights.weight_bus import Phase, Report

_MAX_REPORTS = 256
_VOTE_GRACE_S = 0.5
"""After a sender's error, how long the replica may take to say more: a refused bucket closes
the other links, too, and their senders only know that they were closed."""


class UpdateFailed(Exception):
    """One attempt to update the replica ended without a commit."""

    def __init__(self, phase: Phase, error: str, *, silent: bool = False) -> None:
        self.phase, self.error, self.silent = phase, error, silent
        super().__init__(f"{phase}: {error}")


class Reports:
    """A bounded queue that only takes what concerns the phase under way."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Report] = asyncio.Queue(_MAX_REPORTS)
        self._awaited: tuple[Phase, int, str] | None = None

    def expect(self, phase: Phase, version: int, prefix: str = "") -> None:
        """From now on only reports of this phase count, and of sends when staging."""
        self._awaited = phase, version, prefix

    def forget(self) -> None:
        """Nothing is awaited any more."""
        self._awaited = None

    def take(self, report: Report) -> bool:
        """Hand in a report; False if it is not awaited."""
        if not self._concerns(report) or self._queue.full():
            return False
        self._queue.put_nowait(report)
        return True

    def give_up_stage(self, error: str) -> None:
        """End a wait for a stage's vote, which may still come for a moment."""
        if self._awaited is not None and self._awaited[0] is Phase.STAGE:
            _, version, prefix = self._awaited
            self.take(
                Report(
                    member_id="",
                    replica_id="",
                    phase=Phase.SEND,
                    version=version,
                    error=error,
                    seconds=0.0,
                    prefix=prefix,
                )
            )

    async def wait(self, timeout_s: float) -> Report:
        """The replica's report of the awaited phase.

        A sender's error ends the wait after a short grace period, in which the replica may
        report its own reason.

        Raises:
            UpdateFailed: a member reported an error, or nothing came in time.
        """
        assert self._awaited is not None, "expect() first"
        phase, lost = self._awaited[0], None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                while True:
                    report = await self._queue.get()
                    if not self._concerns(report):
                        BusMetrics.dropped_reports.inc()
                    elif report.phase is not phase and report.error is not None:
                        if lost is None:
                            limit.reschedule(asyncio.get_running_loop().time() + _VOTE_GRACE_S)
                        lost = lost or report
                    elif report.error is not None:
                        raise UpdateFailed(phase, report.error)
                    elif report.phase is phase:
                        return report
        except TimeoutError:
            if lost is not None:
                raise UpdateFailed(lost.phase, str(lost.error)) from None
            raise UpdateFailed(phase, f"no report in {timeout_s:g} s", silent=True) from None

    def _concerns(self, report: Report) -> bool:
        if self._awaited is None:
            return False
        phase, version, prefix = self._awaited
        if report.version != version:
            return False
        if report.phase is Phase.COMMIT:
            return phase is Phase.COMMIT
        return phase is Phase.STAGE and report.prefix.startswith(prefix)
