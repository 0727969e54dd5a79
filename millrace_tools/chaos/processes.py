"""The processes of one node of a Ray cluster: the raylet and what is below it.

Nothing else is ever looked at, so nothing else can be hit, whatever runs beside it.
"""

import os
from dataclasses import dataclass

import psutil

from millrace_tools.chaos.script import Target
from millrace_tools.chaos.start_time import started

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
_BELOW = {Target.ENGINE: Target.REPLICA, Target.GRADER: Target.REWARD}
"""Children of another target's processes. A forked engine core shows its replica's title, since
it cannot set its own over the one that Ray has set."""

_NO_PART = "multiprocessing.resource_tracker"
"""In the title of a child that Python starts by itself."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """One process, and no other that may get its number later.

    Attributes:
        pid: on its node.
        started: clock ticks after the node's start, from /proc/PID/stat.
    """

    pid: int
    started: int


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A process that a fault may have, with those below it.

    Attributes:
        target: which part of the cluster it is.
        life: itself.
        below: its descendants, which are frozen along with it.
        title: its command line.
    """

    target: Target
    life: Life
    below: tuple[Life, ...]
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


def victims(raylet: int) -> list[Victim]:
    """Every process of the node's part of the cluster that is a target, by process id."""
    root = psutil.Process(raylet)
    found = [_victim(Target.RAYLET, root, alone=True)]
    for process in root.children():
        title = title_of(process)
        for target, begins in _TITLES.items():
            if title.startswith(begins):
                found.append(_victim(target, process))
                found += _below(target, process)
    known = [one for one in found if one is not None]
    return sorted(known, key=lambda one: one.life.pid)


def _below(target: Target, process: psutil.Process) -> list[Victim | None]:
    kinds = [below for below, above in _BELOW.items() if above is target]
    try:
        children = process.children() if kinds else []
    except psutil.NoSuchProcess:
        return []
    parts = [child for child in children if _NO_PART not in title_of(child)]
    return [_victim(below, child) for below in kinds for child in parts]


def _victim(target: Target, process: psutil.Process, *, alone: bool = False) -> Victim | None:
    """None for one that has ended meanwhile."""
    try:
        below = [] if alone else process.children(recursive=True)
        return Victim(
            target=target,
            life=Life(pid=process.pid, started=started(process.pid)),
            below=tuple(life for one in below if (life := _life(one.pid)) is not None),
            title=title_of(process),
        )
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


def _life(pid: int) -> Life | None:
    try:
        return Life(pid=pid, started=started(pid))
    except (FileNotFoundError, ProcessLookupError):
        return None


def title_of(process: psutil.Process) -> str:
    """What the process calls itself, empty if it has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
