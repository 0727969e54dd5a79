"""A small Ray actor on each node: it lists target processes and starts fault processes."""

import json
import select
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from millrace_tools.chaos import fault_process
from millrace_tools.chaos.processes import TargetProcess, own_raylet, target_processes
from millrace_tools.chaos.script import FaultSpec

_ANSWER_S = 20.0


class NodeAgent:
    """Acts on the processes of this node's part of the cluster that it was started in."""

    def __init__(self) -> None:
        self._raylet = own_raylet()

    def target_processes(self) -> list[TargetProcess]:
        """See `processes.target_processes`."""
        return target_processes(self._raylet)

    def has_open(self, file: str) -> bool:
        """Whether a process of this part of the cluster has the file open."""
        wanted = Path(file)
        for process in psutil.Process(self._raylet).children(recursive=True):
            with suppress(psutil.Error):
                if any(Path(one.path) == wanted for one in process.open_files()):
                    return True
        return False

    def inject(
        self,
        spec: FaultSpec,
        process: TargetProcess | None = None,
        folder: str = "",
        *,
        control_address: tuple[str, int],
    ) -> str:
        """Begin a fault; it is undone after its time, or when its control connection ends.

        Args:
            spec: the fault.
            process: its target, None for a fault of the whole node.
            folder: on the disk that is filled.
            control_address: where the command listens, see `control_connections`.

        Returns:
            `fault_process.DONE`, or why it could not be done.
        """
        hit = [] if process is None else [process.id, *process.descendants]
        order = spec.model_dump(mode="json", exclude={"at", "target", "which"}) | {
            "processes": hit,
            "folder": folder,
        }
        try:
            connection = socket.create_connection(control_address, _ANSWER_S)
        except OSError as error:
            host, port = control_address
            return f"the command cannot be reached at {host}:{port}: {error}"
        with connection:
            connection.settimeout(None)
            command = [sys.executable, "-m", fault_process.__name__, json.dumps(order)]
            return start_fault_process(command, connection)


def start_fault_process(command: list[str], connection: socket.socket) -> str:
    """Start a fault process; returns its answer when it has begun."""
    started = subprocess.Popen(command, stdin=connection.fileno(), stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started.stdout:
        answered, _, _ = select.select([started.stdout], [], [], _ANSWER_S)
        if not answered:
            started.kill()
            started.wait()
            connection.shutdown(socket.SHUT_RDWR)  # which undoes a fault that began meanwhile
            return f"its process has not begun in {_ANSWER_S:g} s"
        answer = started.stdout.readline().decode().strip()
    started.wait(_ANSWER_S)  # its child continues
    return answer
