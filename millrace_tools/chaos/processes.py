"""The processes of one node of a Ray cluster: the raylet and its descendants.

No other process is ever looked at, so no other process can be hit, whatever runs beside it.
"""

import os
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from millrace_tools.chaos.faults.process_handles import start_time
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
        title: its command line.
    """

    target: Target
    id: ProcessId
    descendants: tuple[ProcessId, ...]
    title: str


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
    found = [_target(Target.RAYLET, root, alone=True)]
    for process in root.children():
        title = title_of(process)
        for target, begins in _TITLES.items():
            if title.startswith(begins):
                found.append(_target(target, process))
                found += _children(target, process)
    return sorted((one for one in found if one is not None), key=lambda one: one.id.pid)


def _children(target: Target, process: psutil.Process) -> list[TargetProcess | None]:
    kind = _CHILDREN.get(target)
    try:
        children = process.children() if kind else []
    except psutil.NoSuchProcess:
        return []
    return [_target(kind, child) for child in children if kind and _HELPER not in title_of(child)]


def _target(
    target: Target, process: psutil.Process, *, alone: bool = False
) -> TargetProcess | None:
    """None for one that has ended meanwhile."""
    try:
        own = _id(process.pid)
        below = [] if alone else map(_id, (one.pid for one in process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return None
    descendants = tuple(one for one in below if one is not None)
    title = title_of(process)
    return own and TargetProcess(target=target, id=own, descendants=descendants, title=title)


def _id(pid: int) -> ProcessId | None:
    try:
        return ProcessId(pid, start_time(pid))
    except (FileNotFoundError, ProcessLookupError):
        return None


def title_of(process: psutil.Process) -> str:
    """The process's command line, empty if it has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
