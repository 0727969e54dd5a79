"""Has every node of a Ray cluster look at itself."""

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace_tools.client.joined_cluster import joined_cluster
from millrace_tools.doctor.facts import Machine, Node
from millrace_tools.doctor.probes import observe
from services.protocol.errors import NotReady

_LOOK_S = 120.0
_CLOCK_S = 5.0
_CLOCK_LOOKS = 5


class Doctor:
    """One node's; an actor there."""

    def observe(self, runs: str) -> Machine:
        """Look around."""
        return observe(runs)

    def now(self) -> float:
        """Seconds since 1970 by this node's clock."""
        return time.time()


def look_at_nodes(address: str | None, runs: str) -> list[Node]:
    """Ask every living node; `runs` is where runs are written, on each.

    Raises:
        InvalidInput: there is no cluster at the address.
        NotReady: it does not let us in, or has no node.
    """
    with joined_cluster(address):
        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if not alive:
            raise NotReady("the cluster has no living node")
        doctors = [_doctor(node["NodeID"]) for node in alive]
        looking = [doctor.observe.remote(runs) for doctor in doctors]
        ray.wait(looking, num_returns=len(looking), timeout=_LOOK_S)
        return [
            _node(node["NodeManagerAddress"], doctor, look)
            for node, doctor, look in zip(alive, doctors, looking, strict=True)
        ]


def _doctor(node_id: str) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    # An actor of its own for each node: on a process that is warm, asking for the time is quick.
    return ray.remote(Doctor).options(num_cpus=0, scheduling_strategy=there).remote()


def _node(address: str, doctor: Any, look: Any) -> Node:
    try:
        machine = ray.get(look, timeout=0)
        ahead_s, doubt_s = clock_of(lambda: ray.get(doctor.now.remote(), timeout=_CLOCK_S))
    except GetTimeoutError:
        return Node(address=address, machine=None, problem=f"no answer in {_LOOK_S:g} s")
    except RayError as error:
        last = str(error).strip().splitlines()[-1]
        return Node(address=address, machine=None, problem=last)
    return Node(address=address, machine=machine, clock_ahead_s=ahead_s, clock_doubt_s=doubt_s)


def clock_of(now: Any) -> tuple[float, float]:
    """How far a clock is ahead of ours, and the doubt in that, both seconds.

    The quickest of several looks counts: its answer was read in the middle of the asking,
    give or take half of it (Cristian, "Probabilistic clock synchronization", 1989).
    """
    looks: Sequence[tuple[float, float]] = [_look(now) for _ in range(_CLOCK_LOOKS)]
    doubt_s, ahead_s = min(looks)
    return ahead_s, doubt_s


def _look(now: Any) -> tuple[float, float]:
    began = time.time()
    theirs = now()
    ended = time.time()
    return (ended - began) / 2, theirs - (began + ended) / 2
