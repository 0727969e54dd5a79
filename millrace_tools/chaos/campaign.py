"""Injects faults into a running cluster that is monitored and under load."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from millrace_tools.chaos.fault_process import DONE
from millrace_tools.chaos.fault_targets import FaultTargets, answer_of
from millrace_tools.chaos.load_client import LoadClient
from millrace_tools.chaos.monitor import Monitor
from millrace_tools.chaos.observation import InjectedFault, Observation
from millrace_tools.chaos.random_faults import RandomFaults
from millrace_tools.chaos.script import Fault, FaultSpec, Script, Target, Turn

_POLL_S = 0.1
_TURN_LOOK_S, _TURN_S = 0.005, 120.0
_SHOWN_S = 15.0
"""A lease may outlive its replica by the 10 s of the member table's own."""
SPARED = frozenset({Target.REPLICA, Target.ENGINE})
"""Not hit at random while another one recovers: one replica must answer."""

STEPS_FIRST = frozenset({Target.RANK, Target.TRAINER, Target.ORCHESTRATOR})
"""Not killed at random twice without a train step in between: a run that makes no progress
gives up, as it must."""


class Campaign:
    """Faults, one after another; each is appended to the observation.

    Args:
        targets: finds the targets of each fault.
        monitor: whose observation it is.
        report: called with each fault.
    """

    def __init__(
        self, targets: FaultTargets, monitor: Monitor, report: Callable[[InjectedFault], None]
    ) -> None:
        self._targets, self._monitor, self._report = targets, monitor, report
        self._seen: Observation = monitor.observation
        self._clock = monitor.clock
        self._random = RandomFaults(0)
        self._killed_at_step: dict[Target, int] = {}

    async def scripted(self, script: Script, seed: int) -> None:
        """Every line of a script at its time; `seed` chooses among several targets."""
        self._random = RandomFaults(seed)
        for spec in script.in_order:
            await asyncio.sleep(max(0.0, spec.at - self._clock()))
            await self._inject(spec)

    async def at_random(self, seed: int, *, for_s: float, every_s: float) -> None:
        """A fault every `every_s`, until the time or the run is over."""
        self._random = RandomFaults(seed)
        due = self._clock()
        while self._clock() < for_s and not self._monitor.run_over:
            now = self._clock()
            if now >= due and (spec := self._random.next(now, self._allowed)):
                await self._inject(spec)
                due = max(due + every_s, self._clock())
            await asyncio.sleep(_POLL_S)

    async def until_recovered(self, settle_s: float, *, calls: bool) -> None:
        """Wait until every fault is over and its effects show, and then, for at most `settle_s`,
        until all replicas are leased, the run has made a step and, if `calls`, a client's call
        was answered."""
        last = max((one.over_s for one in self._seen.faults), default=-_SHOWN_S)
        await asyncio.sleep(max(0.0, last + _SHOWN_S - self._clock()))
        step = self._seen.step_at(last)
        deadline = self._clock() + settle_s
        while self._clock() < deadline:
            moved = self._monitor.run_over or self._seen.step_at(self._clock()) > step
            answered = not calls or any(call.sent_s > last for call in self._seen.calls)
            if moved and answered and self._seen.all_leased:
                return
            await asyncio.sleep(_POLL_S)

    def _allowed(self, fault: Fault, target: Target) -> bool:
        if target in SPARED and not self._seen.all_leased:
            return False
        if fault is Fault.KILL and target in STEPS_FIRST:
            before = max(self._killed_at_step.values(), default=-1)
            return self._seen.step_at(self._clock()) > before
        return True

    async def _turn_shown(self, turn: Turn | None) -> bool:
        """Wait for a part of a turn; False if it has not come in two minutes."""
        deadline = self._clock() + _TURN_S
        while turn is not None and self._clock() < deadline:
            if self._seen.leases and self._seen.leases[-1].shows(turn, self._seen.expected):
                return True
            await asyncio.sleep(_TURN_LOOK_S)
        return turn is None

    async def _inject(self, spec: FaultSpec) -> None:
        if not await self._turn_shown(spec.when):
            refused = f"the replicas were not {spec.when} within {_TURN_S:g} s"
            self._note(InjectedFault(at_s=self._clock(), spec=spec, victim="", refused=refused))
            return
        targets = await self._targets.of(spec)
        at_s, victim, refused = self._clock(), "", "there is none"
        if targets:
            index = self._random.choose(len(targets)) if spec.which is None else spec.which
            victim, inject = targets[min(index, len(targets) - 1)]
            answer = await answer_of(inject())
            refused = "" if answer == DONE else answer or "its node does not answer"
            if spec.fault is Fault.KILL and spec.target in STEPS_FIRST and not refused:
                self._killed_at_step[spec.target] = self._seen.step_at(at_s)
        self._note(InjectedFault(at_s=at_s, spec=spec, victim=victim, refused=refused))

    def _note(self, injected: InjectedFault) -> None:
        self._seen.faults.append(injected)
        self._report(injected)


@asynccontextmanager
async def monitored(
    monitor: Monitor, clients: Sequence[LoadClient], pause_s: float
) -> AsyncIterator[None]:
    """Monitor the cluster and call it inside; a monitor's error ends the campaign."""
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as group:
        for client in clients:
            closing.push_async_callback(client.close)
        loops = [monitor.leases(), monitor.progress(), monitor.ledger()]
        loops += [client.run(pause_s) for client in clients]
        tasks = [group.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def clock() -> Callable[[], float]:
    """A clock that counts seconds from now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
