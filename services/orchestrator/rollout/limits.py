"""How long a rollout may take: in all, and without progress."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Self

from services.protocol.run.orchestrator import RunConfig


@dataclass(frozen=True, kw_only=True)
class RolloutLimits:
    """Deadlines of one rollout, seconds.

    Attributes:
        total_s: of the whole; None: there is none.
        progress_s: longest without a sign of progress.
        taken_s: of an episode, from when an agent outside took it; None: there is none.
    """

    total_s: float | None
    progress_s: float
    taken_s: float | None = None

    @classmethod
    def of(cls, run: RunConfig) -> Self:
        """Those that a run file sets."""
        return cls(
            total_s=run.rollout_timeout_s,
            progress_s=run.rollout_progress_timeout_s,
            # A live conversation is its user's; the run's staleness ends what it waits for.
            taken_s=None if run.is_live else run.episode_timeout_s,
        )

    @property
    def longest_quiet_s(self) -> float:
        """Longest that a rollout can be open without progress."""
        return self.progress_s if self.total_s is None else min(self.total_s, self.progress_s)


class LimitReached(Exception):
    """A rollout was given up.

    Attributes:
        reason: `deadline`, or `no_progress`.
    """

    def __init__(self, reason: Literal["deadline", "no_progress"], detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@asynccontextmanager
async def limited(limits: RolloutLimits) -> AsyncIterator[Callable[[], None]]:
    """End the block after one of its limits; its value is to be called at each sign of progress.

    Raises:
        LimitReached: one of them was reached.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.total_s) as total:
            async with asyncio.timeout(limits.progress_s) as quiet:

                def progressed() -> None:
                    if not quiet.expired():
                        quiet.reschedule(loop.time() + limits.progress_s)

                yield progressed
    except TimeoutError:
        if total.expired():
            detail = f"not answered in {limits.total_s:g} s"
            raise LimitReached("deadline", detail) from None
        if quiet.expired():
            detail = f"no progress for {limits.progress_s:g} s"
            raise LimitReached("no_progress", detail) from None
        raise
