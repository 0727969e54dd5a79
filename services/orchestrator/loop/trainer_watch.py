"""Waits for the trainer, which last as long as it shows progress."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from services.orchestrator.core.context import RunContext
from services.protocol.errors import NotReady
from services.protocol.trainer import TrainerState

LOOK_S = 5.0
"""Between two looks at the state of a trainer that has work."""

T = TypeVar("T")


async def watched(
    context: RunContext, call: Coroutine[Any, Any, T], worked: Callable[[], None] = lambda: None
) -> T:
    """The trainer's answer, however long it takes; the run's detail says what the trainer does.

    The trainer ends a call whose ranks hang by itself. What is watched for here is a trainer
    that is silent, or knows nothing of the call.

    Args:
        context: of the run.
        call: of the trainer.
        worked: called at each sign of work.

    Raises:
        NotReady: its state has shown no work for `trainer_timeout_s`.
    """
    progress, limit_s = context.progress, context.config.trainer_timeout_s
    detail = shown = progress.detail
    answer, heard_at = asyncio.ensure_future(call), time.monotonic()
    try:
        while not (await asyncio.wait({answer}, timeout=min(LOOK_S, limit_s)))[0]:
            work = await _work(context)
            if work is not None:
                heard_at = time.monotonic()
                worked()
                if progress.detail == shown:  # else somebody has more to say
                    progress.detail = shown = f"{detail}: {work}"
            elif time.monotonic() - heard_at > limit_s:
                raise NotReady(f"the trainer's state has shown no work for {limit_s:g} s")
        return answer.result()
    finally:
        answer.cancel()
        if progress.detail == shown:
            progress.detail = detail


async def _work(context: RunContext) -> str | None:
    """What the trainer does, None where it does nothing or does not answer."""
    try:
        state = await context.peers.trainer.state()
    except NotReady:
        return None
    return None if state.progress is None else str(state.progress)


class StartDeadline:
    """How long a trainer may take to be up: as long as it shows progress, and does not fail
    `recoveries_in_row` times."""

    def __init__(self, context: RunContext) -> None:
        self._timeout_s = context.config.trainer_timeout_s
        self._failures_allowed = context.config.recoveries_in_row
        self._failures = self._failed_starts = 0
        self._heard_at = time.monotonic()

    def heard(self, state: TrainerState) -> None:
        """The trainer has told its state."""
        self._failed_starts = state.failed_starts
        if state.ready or state.progress is not None:
            self.worked()

    def worked(self) -> None:
        """The trainer has shown work."""
        if self._failures + self._failed_starts <= self._failures_allowed:
            self._heard_at = time.monotonic()

    def failed(self) -> None:
        """The trainer was ready and failed to start the run."""
        self._failures += 1

    @property
    def over(self) -> bool:
        """Whether the trainer has shown no progress for too long."""
        return time.monotonic() - self._heard_at > self._timeout_s
