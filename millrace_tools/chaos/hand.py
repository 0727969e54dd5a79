"""What acts on one node: a small Ray actor that lists victims and starts keepers."""

import json
import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace_tools.chaos import keeper
from millrace_tools.chaos.processes import Victim, own_raylet, victims
from millrace_tools.chaos.script import Deed

_ANSWER_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node and the hand on it.

    Attributes:
        node_id: Ray's name for it.
        address: its IP address.
        hand: handle of the `Hand` there.
    """

    node_id: str
    address: str
    hand: Any


class Hand:
    """Acts on the processes of this node's part of the cluster that it was started in."""

    def __init__(self) -> None:
        self._raylet = own_raylet()

    def victims(self) -> list[Victim]:
        """See `processes.victims`."""
        return victims(self._raylet)

    def holds(self, file: str) -> bool:
        """Whether a process of this part of the cluster has the file open."""
        wanted = Path(file)
        for process in psutil.Process(self._raylet).children(recursive=True):
            with suppress(psutil.Error):
                if any(Path(one.path) == wanted for one in process.open_files()):
                    return True
        return False

    def strike(
        self,
        deed: Deed,
        victim: Victim | None = None,
        folder: str = "",
        *,
        lifeline: tuple[str, int],
    ) -> str:
        """Begin a fault; it is undone after its time, or when its lifeline ends.

        Args:
            deed: the fault.
            victim: the process that has it, None for a fault of the whole node.
            folder: on the disk that is filled.
            lifeline: where the command listens, see `lifelines`.

        Returns:
            `keeper.DONE`, or why it could not be done.
        """
        lives = [] if victim is None else [victim.life, *victim.below]
        order = deed.model_dump(mode="json", exclude={"at", "target", "which"}) | {
            "lives": [(life.pid, life.started) for life in lives],
            "folder": folder,
        }
        try:
            line = socket.create_connection(lifeline, _ANSWER_S)
        except OSError as error:
            return f"the command cannot be reached at {lifeline[0]}:{lifeline[1]}: {error}"
        with line:
            line.settimeout(None)
            return _begun([sys.executable, "-m", keeper.__name__, json.dumps(order)], line)


def _begun(command: list[str], lifeline: socket.socket) -> str:
    """Start a keeper; what it says when it has begun."""
    started = subprocess.Popen(command, stdin=lifeline.fileno(), stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started.stdout:
        said, _, _ = select.select([started.stdout], [], [], _ANSWER_S)
        if not said:
            started.kill()
            started.wait()
            lifeline.shutdown(socket.SHUT_RDWR)  # which undoes what it may have begun meanwhile
            return f"its keeper has not begun in {_ANSWER_S:g} s"
        answer = started.stdout.readline().decode().strip()
    started.wait(_ANSWER_S)  # it has left a child that goes on
    return answer


def nodes() -> list[Node]:
    """A hand on every living node of the cluster that this process has joined, by address."""
    found = []
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            here = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            actor = ray.remote(Hand).options(num_cpus=0, scheduling_strategy=here)
            address = node["NodeManagerAddress"]
            found.append(Node(node_id=node["NodeID"], address=address, hand=actor.remote()))
    return sorted(found, key=lambda node: node.address)
