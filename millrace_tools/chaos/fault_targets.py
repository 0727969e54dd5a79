"""Targets that a fault can hit now, on all nodes of the cluster."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from millrace_tools.chaos.fault_process import DONE
from millrace_tools.chaos.script import PROCESSES, FaultSpec, Target
from services.protocol.errors import NotReady
from services.protocol.trainer import RANK_PREFIX
from services.protocol.weights.weight_bus import NAMESPACE

_ANSWER_S = 30.0

FaultTarget = tuple[str, Callable[[], Any]]
"""Its name, for people, and a function that begins the fault: the awaited result is
`fault_process.DONE`, or an error."""


@dataclass(frozen=True, kw_only=True)
class FaultTargets:
    """Finds targets: processes by the agents on the nodes, ranks by their names.

    Attributes:
        agents: address and `NodeAgent` of every node of the cluster.
        run_dir: of the run, whose disk may be filled.
        ledger: path of the run's ledger, which its orchestrator has open.
        control_address: where the command listens, see `control_connections`.
    """

    agents: Sequence[tuple[str, Any]]
    run_dir: str
    ledger: str
    control_address: tuple[str, int]

    async def of(self, spec: FaultSpec) -> list[FaultTarget]:
        """Every target that the fault can hit."""
        if spec.target is Target.PUSH:
            return await asyncio.to_thread(_ranks, spec)
        found: list[FaultTarget] = []
        for address, agent in self.agents:
            if spec.node not in (None, address):
                continue
            inject = partial(agent.inject.remote, spec, control_address=self.control_address)
            if spec.target in PROCESSES:
                for process in await answer_of(agent.target_processes.remote()) or ():
                    if process.target is spec.target:
                        name = f"{process.id.pid} on {address}"
                        found.append((name, partial(inject, process)))
            elif spec.target is Target.DISK:
                if await answer_of(agent.has_open.remote(self.ledger)):
                    found.append((address, partial(inject, None, self.run_dir)))
            elif len(self.agents) > 1:
                found.append((address, inject))
        return found


def _ranks(spec: FaultSpec) -> list[FaultTarget]:
    """Ranks that allow fault injection into their sends."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(one["name"] for one in actors if one["namespace"] == NAMESPACE)
    return [(name, partial(_spoil, name, spec)) for name in names if name.startswith(RANK_PREFIX)]


async def _spoil(name: str, spec: FaultSpec) -> str:
    rank: Any = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
    try:
        await rank.inject_fault.remote(spec.fault)
    except NotReady as refusal:
        return str(refusal)
    return DONE


async def answer_of(call: Any) -> Any:
    """The result of a remote call; None if its node does not answer in time."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await call
    except (TimeoutError, ValueError, ray.exceptions.RayError):  # the second: no such actor
        return None
