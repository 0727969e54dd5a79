"""A worker of one core: a jail for answers, and another for the user's own test code."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.reward_service.sandbox.execution import (
    Execution,
    Outcome,
    SandboxCrashed,
    SlotFailed,
    SlotLost,
)
from services.reward_service.sandbox.slot import Slot

_log = Log("reward_service")
_T = TypeVar("_T")

_CONTENDED_FACTOR = 4.0
"""How many times longer the second run may idle when the first may have been starved."""


class SandboxWorker:
    """Two slots of which one computes at a time, so a worker takes one core.

    Attributes:
        answers: runs what the policy wrote; nothing that is expected enters it.
        trusted: runs checkers and asserts, which know what is expected; started when needed.
    """

    def __init__(self, answers: Slot, trusted: Slot) -> None:
        self.answers, self.trusted = answers, trusted

    async def start(self) -> None:
        """Make the slot for answers ready.

        Raises:
            SlotFailed: it cannot be started.
        """
        if not self.answers.alive:
            await _start(self.answers)

    async def run(self, execution: Execution) -> Outcome:
        """Run to an outcome that is the answer's own doing.

        A lost slot is started anew and the run repeated once. A process that was stopped while
        idle on a busy machine may only have been starved, so it gets a second, longer chance.

        Raises:
            SandboxCrashed: the answer lost its slot twice.
            SlotFailed: no process could be had, which is nothing the answer did.
        """
        outcome = await self._twice(lambda: self.answers.run(execution))
        if outcome.killed == "wall" and _machine_is_contended():
            RewardMetrics.retries.inc()
            longer = replace(execution, wall_s=_CONTENDED_FACTOR * execution.wall_s)
            outcome = await self._twice(lambda: self.answers.run(longer))
        return _counted(outcome)

    async def run_with_tests(
        self, answer: Execution, tests: Callable[[float], Execution], wall_s: float
    ) -> tuple[Outcome, Outcome]:
        """Run an answer and tests that call it, each in its own jail, joined by two pipes.

        Lost and starved processes get a second chance, as in `run`.

        Args:
            answer: the answer's side.
            tests: the tests' side, for the seconds that it may wait for the answer.
            wall_s: those seconds.

        Raises:
            SandboxCrashed: the answer lost its slot twice.
            SlotFailed: no process could be had, or the tests' own jail was lost.
        """
        both = await self._twice(lambda: self._beside(answer, tests(wall_s)))
        waited_s = both[1].wall_s - both[1].cpu_s
        if waited_s >= wall_s and _machine_is_contended():
            RewardMetrics.retries.inc()
            longer = replace(answer, wall_s=answer.wall_s + (_CONTENDED_FACTOR - 1) * wall_s)
            both = await self._twice(
                lambda: self._beside(longer, tests(_CONTENDED_FACTOR * wall_s))
            )
        return _counted(both[0]), both[1]

    async def run_trusted(self, execution: Execution) -> Outcome:
        """Run the user's test code.

        Raises:
            SlotFailed: the jail could not be started, or was lost.
        """
        if not self.trusted.alive:
            await _start(self.trusted)
        try:
            return await self.trusted.run(execution)
        except SlotLost as error:
            raise SlotFailed(f"the tests' own jail was lost: {error}") from error

    def close(self) -> None:
        """End both slots."""
        self.answers.close()
        self.trusted.close()

    async def _twice(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """Run, and once more in a new slot if the answer's is lost."""
        try:
            return await run()
        except SlotLost as error:
            _log.warning("slot_lost", reason=str(error))
            RewardMetrics.retries.inc()
            await _start(self.answers)
        try:
            return await run()
        except SlotLost as error:
            raise SandboxCrashed(str(error)) from error

    async def _beside(self, answer: Execution, tests: Execution) -> tuple[Outcome, Outcome]:
        if not self.trusted.alive:
            await _start(self.trusted)
        (calls_in, calls_out), (replies_in, replies_out) = os.pipe(), os.pipe()
        tests = replace(tests, channel=(replies_in, calls_out))
        answer = replace(answer, channel=(calls_in, replies_out))
        try:
            files = self._begin_both(answer, tests)
        finally:  # or neither would learn of the other's end
            for descriptor in (calls_in, calls_out, replies_in, replies_out):
                os.close(descriptor)
        ends = self.answers.end(answer, files[0]), self.trusted.end(tests, files[1])
        mine, theirs = await asyncio.gather(*ends, return_exceptions=True)
        if isinstance(theirs, SlotLost):
            raise SlotFailed(f"the tests' own jail was lost: {theirs}") from theirs
        for outcome in (mine, theirs):
            if isinstance(outcome, BaseException):
                raise outcome
        assert isinstance(mine, Outcome)
        assert isinstance(theirs, Outcome)
        return mine, theirs

    def _begin_both(self, answer: Execution, tests: Execution) -> tuple[list[int], list[int]]:
        try:
            asked = self.trusted.begin(tests)
        except SlotLost as error:
            raise SlotFailed(f"the tests' own jail was lost: {error}") from error
        try:
            return self.answers.begin(answer), asked
        except SlotLost:
            self.trusted.abandon(asked)
            raise


async def _start(slot: Slot) -> None:
    """Start it, and once more if that fails: what killed the last one may kill the next.

    Raises:
        SlotFailed: twice.
    """
    try:
        await slot.start()
    except SlotFailed as error:
        _log.warning("slot_failed", reason=str(error))
        await slot.start()


def _counted(outcome: Outcome) -> Outcome:
    if outcome.denied_by is not None:
        RewardMetrics.denials.inc(1, {"layer": outcome.denied_by})
    return outcome


def _machine_is_contended() -> bool:
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
