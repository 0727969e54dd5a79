"""What runs in a workspace: programs, each to its end, and the kept interpreter."""

import asyncio
import os
import signal
from typing import Any

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import CallResult, ExecCall, PythonCall, Status
from services.reward_service.off_loop import off_loop as beside_loop
from services.reward_service.sandbox.execution import sealed_file
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.jails import processes
from services.reward_service.workspaces.jails.side_thread import off_loop
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.running.files import Files
from services.reward_service.workspaces.running.interpreter import CellReport, Interpreter
from services.reward_service.workspaces.running.output import OnOutput, Output
from services.reward_service.workspaces.running.running_call import (
    GRACE_S,
    CallLimits,
    Ended,
    RunningCall,
)
from services.reward_service.workspaces.running.turns import Turns

_REPORT_BYTES = 1 << 20
"""Characters of a cell's report beside its pictures."""
_MAX_RESULT = 1 << 19
"""Characters of a cell's result."""
_JSON_FACTOR = 6
"""Bytes of JSON for a character, at most."""
_FULL_BYTES = 4096
_MAX_COMMAND = 6 << 20
"""Characters of arguments and environment: Linux never takes as many bytes (execve(2))."""
_MAX_CELLS_BYTES, _CELL_BYTES = 2 << 20, 512
"""Of the cells that are kept to make the variables again, and of one beside its code."""
_BY_SIGNAL: dict[int, Status] = {-signal.SIGXFSZ: "disk_limit", -signal.SIGXCPU: "time_limit"}


class Programs:
    """Runs calls in one jail; one at a time, as `Turns` sees to.

    Attributes:
        files: of the same jail.
        memory: bytes that its processes held when they were last looked at.
    """

    def __init__(self, jail: WorkspaceJail, turns: Turns, config: WorkspacesConfig) -> None:
        self.files = Files(jail, config.file_mb << 20)
        self.memory = 0
        self._cells: list[PythonCall] = []
        self._cells_bytes = 0
        self._jail, self._turns, self._config = jail, turns, config
        self._spec = jail.spec
        self._interpreter: Interpreter | None = None
        self._lost_untold = False  # variables are gone, and no answer has said so

    async def exec(self, call: ExecCall, on_output: OnOutput | None) -> CallResult:
        """Run a program to its end, and end what it leaves behind.

        Raises:
            InvalidInput: no program can have such a command.
        """
        _check_size(call)
        argv = call.argv if call.argv is not None else ["/bin/sh", "-c", call.shell]
        memory = min(call.memory_mb or self._spec.memory_mb, self._spec.memory_mb) << 20
        order = {
            "do": "exec",
            "argv": argv,
            "cwd": call.cwd,
            "environment": {**self._jail.environment, **call.env},
            "memory": memory,
            "file_size": self._spec.disk_mb << 20,
            "cpu_s": call.cpu_s,
        }
        kept = set()
        if self._interpreter is not None:
            kept = set(await off_loop(processes.children, self._jail.agent))
        output = Output()
        stdin = sealed_file(call.stdin.encode())
        try:
            running = self._running(call, memory)
            ended = await running.run(order, [stdin, *output.writers], output, on_output)
            if ended.reply["interpreter"]:
                if await off_loop(processes.kill_leftovers, self._jail.agent, kept):
                    await self._jail.call({"do": "reap"}, [], GRACE_S)
            else:
                self._drop_interpreter()
            exit_code = ended.reply["exit_code"]
            return await self._result(ended, output, failed=exit_code != 0, exit_code=exit_code)
        finally:
            output.close()
            os.close(stdin)

    async def python(self, call: PythonCall, on_output: OnOutput | None) -> CallResult:
        """Run a cell; in a new interpreter if it asks for one or there is none."""
        if call.restart:
            self._drop_interpreter()
        start = self._interpreter is None
        interpreter = self._interpreter = self._interpreter or self._new_interpreter()
        memory = self._spec.memory_mb << 20
        order = {
            "do": "python",
            "start": start,
            "memory": memory,
            "file_size": self._spec.disk_mb << 20,
        }
        running = self._running(call, memory)

        async def cell() -> CellReport | None:
            report = await interpreter.run(
                call.code,
                min(call.output_kb << 10, _MAX_RESULT),
                self._config.picture_mb << 20,
            )
            if report is not None:
                running.freeze()
            else:
                running.end(None)
            return report

        reporting = asyncio.ensure_future(cell())
        try:
            descriptors = interpreter.descriptors if start else []
            ended = await running.run(order, descriptors, interpreter.output, on_output)
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])
        interpreter.close_theirs()
        report = None if reporting.cancelled() else reporting.result()
        alive = ended.reply["interpreter"]
        exit_code = None if alive else ended.reply.get("exit_code")  # none: died after its report
        failed = bool(exit_code) or (report is not None and report.traceback is not None)
        result = await self._result(
            ended, interpreter.output, failed=failed, exit_code=exit_code, report=report
        )
        if not alive:
            self._drop_interpreter()
        elif result.status == "ok":
            self._keep(call)
        restarted = self._lost_untold
        self._lost_untold = restarted and self._turns.aborted
        return result.model_copy(update={"interpreter_restarted": restarted})

    def kept_cells(self) -> tuple[PythonCall, ...]:
        """The cells that made the interpreter's variables.

        Raises:
            InvalidInput: they are too many to be kept.
        """
        if self._cells_bytes > _MAX_CELLS_BYTES:
            fix = f"Its cells have more than {_MAX_CELLS_BYTES >> 20} MiB: restart the interpreter."
            raise InvalidInput("cells", f"{self._cells_bytes} bytes", fix)
        return tuple(self._cells)

    def close(self) -> None:
        """Give back what is held of the interpreter."""
        self._drop_interpreter()

    def _new_interpreter(self) -> Interpreter:
        pictures = 2 * (self._config.picture_mb << 20)
        return Interpreter(pictures + _JSON_FACTOR * _REPORT_BYTES)

    def _drop_interpreter(self) -> None:
        if self._interpreter is not None:
            self._interpreter.close()
            self._lost_untold = True
        self._interpreter = None
        self._cells, self._cells_bytes = [], 0

    def _keep(self, call: PythonCall) -> None:
        self._cells_bytes += len(call.code) + _CELL_BYTES
        if self._cells_bytes > _MAX_CELLS_BYTES:
            self._cells.clear()
        else:
            self._cells.append(call.model_copy(update={"restart": False, "stream": False}))

    def _running(self, call: ExecCall | PythonCall, memory: int) -> RunningCall:
        limits = CallLimits(
            wall_s=call.wall_s,
            cpu_s=call.cpu_s,
            memory=memory,
            output=call.output_kb << 10,
            processes=self._spec.processes,
            disk=self._spec.disk_mb << 20,
        )
        running = RunningCall(self._jail, limits)
        self._turns.can_end(lambda: running.end(None))
        return running

    async def _result(
        self,
        ended: Ended,
        output: Output,
        *,
        failed: bool,
        exit_code: int | None,
        report: CellReport | None = None,
    ) -> CallResult:
        self.memory = ended.most.memory
        written = output.end()
        (stdout, stdout_bytes), (stderr, stderr_bytes) = written["stdout"], written["stderr"]
        size = len(stdout) + len(stderr)
        shown = await beside_loop(size, lambda: [_text(part) for part in (stdout, stderr)])
        reported: dict[str, Any] = {} if report is None else report.model_dump(exclude={"cell"})
        return CallResult(
            status=await self._status(ended, failed=failed, exit_code=exit_code, report=report),
            exit_code=exit_code,
            stdout=shown[0],
            stderr=shown[1],
            wall_s=ended.reply["wall_s"],
            cpu_s=ended.cpu_s,
            stdout_bytes=stdout_bytes,
            stderr_bytes=stderr_bytes,
            **reported,
        )

    async def _status(
        self, ended: Ended, *, failed: bool, exit_code: int | None, report: CellReport | None
    ) -> Status:
        """The limit that ended the call, or because of which it failed.

        Raises:
            WorkspaceFault: it failed, and the disk of the node is full.
        """
        if ended.status is not None:
            return ended.status
        if self._jail.disk[0] > self._spec.disk_mb << 20:
            return "disk_limit"
        if not failed:
            return "ok"
        if exit_code is not None and exit_code in _BY_SIGNAL:
            return _BY_SIGNAL[exit_code]
        if report is not None and _last_line(report.traceback).startswith("MemoryError"):
            return "memory_limit"
        if self._jail.disk[1] < _FULL_BYTES:
            return "disk_limit"
        if ended.most.processes >= self._spec.processes:
            return "process_limit"
        self._jail.check_node()
        return "failed"


def _check_size(call: ExecCall) -> None:
    sizes = {
        "argv": sum(map(len, call.argv or ())),
        "shell": len(call.shell or ""),
        "env": sum(len(name) + len(value) for name, value in call.env.items()),
    }
    if (size := sum(sizes.values())) > _MAX_COMMAND:
        fix = f"No program takes {_MAX_COMMAND >> 20} MiB: write it to a file, or give it as stdin."
        raise InvalidInput(max(sizes, key=lambda name: sizes[name]), f"{size} characters", fix)


def _text(written: bytes) -> str:
    return written.decode(errors="replace")


def _last_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or [""])[-1]
