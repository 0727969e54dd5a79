"""Has every node of a Ray cluster examine itself."""

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from millrace_tools.client.joined_cluster import joined_cluster, node_actors
from millrace_tools.doctor.facts import Machine, Node
from millrace_tools.doctor.probes import observe
from services.protocol.errors import NotReady

_LOOK_S = 120.0
_CLOCK_S = 5.0
_CLOCK_LOOKS = 5


class Doctor:
    """An actor on one node. Its process is warm, so that it answers `now` quickly."""

    def observe(self, runs: str) -> Machine:
        """See `probes.observe`."""
        return observe(runs)

    def now(self) -> float:
        """Seconds since 1970 by this node's clock."""
        return time.time()


def look_at_nodes(address: str | None, runs: str) -> list[Node]:
    """Ask every living node; `runs` is where runs are written, on each.

    Raises:
        InvalidInput: there is no cluster at the address.
        NotReady: it does not let this process in, or has no node.
    """
    with joined_cluster(address):
        doctors = node_actors(Doctor)
        if not doctors:
            raise NotReady("the cluster has no living node")
        looking = [doctor.observe.remote(runs) for _, doctor in doctors]
        ray.wait(looking, num_returns=len(looking), timeout=_LOOK_S)
        return [
            _node(node, doctor, look) for (node, doctor), look in zip(doctors, looking, strict=True)
        ]


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


def clock_of(now: Callable[[], float]) -> tuple[float, float]:
    """Seconds by which a clock is ahead of this one, and their error.

    The quickest of several calls counts: its answer was read in the middle of the call, give or
    take half of its time (Cristian, "Probabilistic clock synchronization", 1989).
    """
    looks = []
    for _ in range(_CLOCK_LOOKS):
        began, theirs, ended = time.time(), now(), time.time()
        looks.append(((ended - began) / 2, theirs - (began + ended) / 2))
    doubt_s, ahead_s = min(looks)
    return ahead_s, doubt_s
