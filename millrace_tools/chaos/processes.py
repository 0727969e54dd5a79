"""The processes of one node of a Ray cluster: the raylet and its descendants.

No other process is ever looked at, so no other process can be hit, whatever runs beside it.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from millrace_tools.chaos.faults.signals import start_time
from millrace_tools.chaos.script import Target

_SERVE = "ray::ServeReplica:"
_TITLES = {
    Target.REPLICA: f"{_SERVE}rollout_server:",
    Target.ROUTER: f"{_SERVE}router:router",
    Target.SESSIONS: f"{_SERVE}router:sessions",
    Target.ORCHESTRATOR: f"{_SERVE}orchestrator:",
    Target.TRAINER: f"{_SERVE}trainer:",
    Target.REWARD: f"{_SERVE}reward_service:",
    Target.RANK: "ray::TrainerRank",
    Target.BUS: "ray::WeightBusActor",
    Target.CONTROLLER: "ray::ServeController",
    Target.PROXY: "ray::ProxyActor",
}
_CHILDREN = {Target.REPLICA: Target.ENGINE, Target.REWARD: Target.GRADER}
"""Targets that are children of another target's processes. A forked engine core shows its
replica's title, since it cannot set its own over the one that Ray has set."""

_HELPER = "multiprocessing.resource_tracker"
"""In the title of a child that Python starts by itself."""


class ProcessId(NamedTuple):
    """One process, and no other that gets its id later.

    Attributes:
        pid: on its node.
        started: clock ticks after the node's start, from /proc/PID/stat.
    """

    pid: int
    started: int


@dataclass(frozen=True, kw_only=True)
class TargetProcess:
    """A process that a fault can hit, with its descendants.

    Attributes:
        target: which part of the cluster it is.
        id: of the process.
        descendants: which are frozen along with it.
    """

    target: Target
    id: ProcessId
    descendants: tuple[ProcessId, ...]


def own_raylet() -> int:
    """The raylet above this Ray worker.

    Raises:
        RuntimeError: this process is not a worker of Ray.
    """
    parent = psutil.Process(os.getppid())
    if "raylet" not in parent.name():
        raise RuntimeError(f"process {os.getpid()} is not a Ray worker: above it is {parent}")
    return parent.pid


def target_processes(raylet: int) -> list[TargetProcess]:
    """Every process of the node's part of the cluster that is a target, by process id."""
    root = psutil.Process(raylet)
    found = [(Target.RAYLET, root)]
    for process in root.children():
        title = title_of(process)
        for target, begins in _TITLES.items():
            if title.startswith(begins):
                found.append((target, process))
                if child := _CHILDREN.get(target):
                    below = (one for one in _below(process) if _HELPER not in title_of(one))
                    found += [(child, one) for one in below]
    targets = (_target(target, process) for target, process in found)
    return sorted(filter(None, targets), key=lambda one: one.id.pid)


def _target(target: Target, process: psutil.Process) -> TargetProcess | None:
    """None for a process that has ended meanwhile."""
    own = _id(process)
    # A frozen raylet is not a frozen node.
    below = [] if target is Target.RAYLET else _below(process, recursive=True)
    descendants = tuple(filter(None, map(_id, below)))
    return own and TargetProcess(target=target, id=own, descendants=descendants)


def _below(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=recursive)
    return []


def _id(process: psutil.Process) -> ProcessId | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        return ProcessId(process.pid, start_time(process.pid))
    return None


def title_of(process: psutil.Process) -> str:
    """The process's command line, empty if it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return ""
