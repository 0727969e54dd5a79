"""One call of a jail while it runs: its limits, and what ended it."""

import asyncio
from dataclasses import dataclass
from typing import Any

from services.protocol.reward.workspaces import Status
from services.reward_service.workspaces.jails import processes
from services.reward_service.workspaces.jails.jail_settings import OWN_PROCESSES
from services.reward_service.workspaces.jails.processes import Usage
from services.reward_service.workspaces.jails.side_thread import off_loop
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.running.output import OnOutput, Output

GRACE_S = 60.0
"""For a jail to start and to end what it runs: only a hang takes longer."""
_FIRST_TICK_S, _TICK_S = 0.03, 0.1
_MEASURE_PAUSES = 20.0
"""How many times longer than measuring a folder takes the pause after it is."""


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """What one call may use; sizes in bytes.

    Attributes:
        wall_s: seconds.
        cpu_s: processor seconds of all its processes.
        memory: of all processes of the workspace together.
        output: of both streams together.
        processes: of the workspace, threads included.
        disk: of the workspace's files.
    """

    wall_s: float
    cpu_s: float
    memory: int
    output: int
    processes: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a call ended.

    Attributes:
        reply: of the jail.
        status: the limit that ended it, None if none did.
        most: the most that was seen to be used.
        cpu_s: processor seconds of all processes, those that go on included.
    """

    reply: dict[str, Any]
    status: Status | None
    most: Usage
    cpu_s: float


_BY_AGENT: dict[str, Status] = {
    "wall": "time_limit",
    "disk": "disk_limit",
    "processes": "process_limit",
}


class RunningCall:
    """Gives an order to a jail and holds what comes of it to limits."""

    def __init__(self, jail: WorkspaceJail, limits: CallLimits) -> None:
        self._jail, self._limits = jail, limits
        self._status: Status | None = None
        self._ended = False
        self._most = Usage()

    async def run(
        self,
        order: dict[str, Any],
        descriptors: list[int],
        output: Output,
        on_output: OnOutput | None,
    ) -> Ended:
        """Run to the end.

        Raises:
            JailLost: the jail is gone.
            WorkspaceFault: no process could be made or confined.
        """
        if self._ended:  # nobody waits for it any more
            raise asyncio.CancelledError
        before = processes.usage(self._jail.agent)
        output.begin(self._limits.output, on_output, lambda: self.end("output_limit"))
        watching = asyncio.ensure_future(self._watch(before))
        try:
            reply = await self._jail.call(
                {**order, "wall_s": self._limits.wall_s, "cpu_s": order.get("cpu_s")},
                descriptors,
                self._limits.wall_s + GRACE_S,
            )
        finally:
            self._ended = True
            output.pause()
            watching.cancel()
            await asyncio.wait([watching])
        after = await off_loop(processes.usage, self._jail.agent)
        # Too few for the watcher to see them: those that were there, and the program itself.
        least = Usage(processes=before.processes + 1 if order["do"] == "exec" else 0)
        self._most = _larger(self._most, least)
        status = self._status
        if reply["killed"] != "kill":
            status = _BY_AGENT.get(reply["killed"])
        cpu_s = max(0.0, after.cpu_s - before.cpu_s)
        if order["do"] == "exec":  # finer than what is seen of ended processes from outside
            cpu_s = max(cpu_s, reply["cpu_s"])
        return Ended(reply=reply, status=status, most=self._most, cpu_s=cpu_s)

    def end(self, status: Status | None) -> None:
        """End the call, at a limit or because nobody waits for it any more."""
        if not self._ended:
            self._ended, self._status = True, status
            self._jail.end_call("kill")

    def freeze(self) -> None:
        """Stop the kept interpreter: its report has come."""
        if not self._ended:
            self._ended = True
            self._jail.end_call("freeze")

    async def _watch(self, before: Usage) -> None:
        limits, folder = self._limits, self._jail.folder
        disk = max(limits.disk, self._jail.disk[0])  # or nothing could be removed any more
        pause_s, measure_in_s = _FIRST_TICK_S, 0.0
        while not self._ended:
            await asyncio.sleep(pause_s)
            used = await off_loop(processes.usage, self._jail.agent)
            self._most = _larger(self._most, used)
            if used.cpu_s - before.cpu_s > limits.cpu_s:
                self.end("time_limit")
            elif used.processes > limits.processes + OWN_PROCESSES:
                self.end("process_limit")
            elif used.memory > limits.memory:
                exact = await off_loop(processes.proportional_memory, self._jail.agent)
                if exact is None or exact > limits.memory:
                    self.end("memory_limit")
            measure_in_s -= pause_s
            if folder is not None and measure_in_s <= 0:
                if await off_loop(folder.used) > disk:
                    self.end("disk_limit")
                measure_in_s = _MEASURE_PAUSES * folder.measured_in_s
            pause_s = _TICK_S


def _larger(one: Usage, other: Usage) -> Usage:
    return Usage(
        cpu_s=max(one.cpu_s, other.cpu_s),
        memory=max(one.memory, other.memory),
        processes=max(one.processes, other.processes),
    )
