"""Plays faults on a running cluster while it is watched and used."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from millrace_tools.chaos.agent import Agent
from millrace_tools.chaos.aims import Aims, within
from millrace_tools.chaos.draw import Draw
from millrace_tools.chaos.keeper import DONE
from millrace_tools.chaos.observation import Observation, Struck
from millrace_tools.chaos.script import Deed, Fault, Script, Target
from millrace_tools.chaos.watch import Watch

_PAUSE_S = 0.1
_SHOWN_S = 15.0
"""A lease may outlive its replica by the 10 s of the member table's own."""
SPARED = frozenset({Target.REPLICA, Target.ENGINE})
"""Not hit at random while another of them is away: someone must answer."""

STEPS_FIRST = frozenset({Target.RANK, Target.TRAINER, Target.ORCHESTRATOR})
"""Not killed at random twice without a train step in between: a run that makes no progress
gives up, as it must."""


class Campaign:
    """Faults, one after another; what they do is in `seen`."""

    def __init__(
        self,
        aims: Aims,
        seen: Observation,
        clock: Callable[[], float],
        watch: Watch,
        say: Callable[[Struck], None],
    ) -> None:
        self._aims, self._seen, self._clock = aims, seen, clock
        self._watch, self._say = watch, say
        self._chooser = Draw(0)
        self._killed_at_step: dict[Target, int] = {}

    async def scripted(self, script: Script, seed: int) -> None:
        """Every line of a script at its time; `seed` chooses among several targets."""
        self._chooser = Draw(seed)
        for deed in script.in_order:
            await asyncio.sleep(max(0.0, deed.at - self._clock()))
            await self._strike(deed)

    async def at_random(self, draw: Draw, *, for_s: float, every_s: float) -> None:
        """A fault every so often, until the time or the run is over."""
        self._chooser = draw
        due = self._clock()
        while self._clock() < for_s and not self._watch.run_over:
            if self._clock() >= due and (deed := draw.next(self._clock(), self._may_hit)):
                await self._strike(deed)
                due = max(due + every_s, self._clock())
            await asyncio.sleep(_PAUSE_S)

    async def until_whole(self, settle_s: float, *, calls: bool) -> None:
        """Wait until every fault is over and has had time to show, and then, for `settle_s` at
        most, until all replicas are leased, the run has moved on and, where anybody calls, a call
        was answered."""
        last = max((one.over_s for one in self._seen.struck), default=-_SHOWN_S)
        shown = last + _SHOWN_S
        await asyncio.sleep(max(0.0, shown - self._clock()))
        step = self._step_at(last)
        deadline = self._clock() + settle_s
        while self._clock() < deadline:
            moved = self._watch.run_over or self._step_at(self._clock()) > step
            answered = not calls or any(call.sent_s > last for call in self._seen.calls)
            if moved and answered and self._whole:
                return
            await asyncio.sleep(_PAUSE_S)

    @property
    def _whole(self) -> bool:
        leases = self._seen.leases
        return bool(leases) and len(leases[-1].leased) >= self._seen.expected

    def _step_at(self, at_s: float) -> int:
        steps = [one.step for one in self._seen.progress if one.at_s <= at_s]
        return steps[-1] if steps else 0

    def _may_hit(self, fault: Fault, target: Target) -> bool:
        if target in SPARED and not self._whole:
            return False
        if fault is Fault.KILL and target in STEPS_FIRST:
            before = max(self._killed_at_step.values(), default=-1)
            return self._step_at(self._clock()) > before
        return True

    async def _strike(self, deed: Deed) -> None:
        aims = await self._aims.at(deed)
        at_s = self._clock()
        if not aims:
            struck = Struck(at_s=at_s, deed=deed, victim="", refused="there is none")
        else:
            index = self._chooser.choose(len(aims)) if deed.which is None else deed.which
            aim = aims[min(index, len(aims) - 1)]
            answer = await within(aim.strike())
            refused = "" if answer == DONE else answer or "its node does not answer"
            struck = Struck(at_s=at_s, deed=deed, victim=aim.name, refused=refused)
            if deed.fault is Fault.KILL and deed.target in STEPS_FIRST and not refused:
                self._killed_at_step[deed.target] = self._step_at(at_s)
        self._seen.struck.append(struck)
        self._say(struck)


@asynccontextmanager
async def watched(watch: Watch, agents: Sequence[Agent], pause_s: float) -> AsyncIterator[None]:
    """Look and call inside; whatever ends a looker ends the campaign."""
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as group:
        for agent in agents:
            closing.push_async_callback(agent.close)
        tasks = [group.create_task(look()) for look in (watch.leases, watch.progress, watch.ledger)]
        tasks += [group.create_task(agent.run(pause_s)) for agent in agents]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def clock() -> Callable[[], float]:
    """Seconds since now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
