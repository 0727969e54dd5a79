"""A place on one core: a jail for answers, and another for the user's own test code."""

import os
from dataclasses import replace

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.reward_service.denials import denied_by
from services.reward_service.execution import Execution, Outcome, SlotFailed, SlotLost
from services.reward_service.slot import Slot

_log = Log("reward_service")

_PATIENCE = 4.0
"""How many times longer the second run may idle when the first may have been starved."""


class SandboxCrashed(RuntimeError):
    """One answer lost two slots, one after the other."""


class Seat:
    """Two slots of which one computes at a time, so a seat takes one core.

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
        outcome = await self._run_retrying(execution)
        if outcome.killed == "wall" and _machine_is_contended():
            RewardMetrics.retries.inc()
            outcome = await self._run_retrying(
                replace(execution, wall_s=_PATIENCE * execution.wall_s)
            )
        if (layer := denied_by(outcome)) is not None:
            RewardMetrics.denials.inc(1, {"layer": layer})
        return outcome

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

    async def _run_retrying(self, execution: Execution) -> Outcome:
        try:
            return await self.answers.run(execution)
        except SlotLost as error:
            _log.warning("slot_lost", reason=str(error))
            RewardMetrics.retries.inc()
            await _start(self.answers)
        try:
            return await self.answers.run(execution)
        except SlotLost as error:
            raise SandboxCrashed(str(error)) from error


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


def _machine_is_contended() -> bool:
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
