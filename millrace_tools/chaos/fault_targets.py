"""Targets that a fault can hit now, on all nodes of the cluster."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from millrace_tools.chaos.fault_process import DONE
from millrace_tools.chaos.node_agent import Node
from millrace_tools.chaos.script import PROCESSES, FaultSpec, Target
from services.protocol.errors import NotReady
from services.protocol.trainer import RANK_PREFIX
from services.protocol.weights.weight_bus import NAMESPACE

_ANSWER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class FaultTarget:
    """One target of a fault.

    Attributes:
        name: for people.
        inject: begins the fault; its awaited result is `fault_process.DONE`, or an error.
    """

    name: str
    inject: Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class FaultTargets:
    """Finds targets: processes by the agents on the nodes, ranks by their names.

    Attributes:
        nodes: all of the cluster.
        run_dir: of the run, whose disk may be filled.
        ledger: path of the run's ledger, which its orchestrator has open.
        control_address: where the command listens, see `control_connections`.
    """

    nodes: Sequence[Node]
    run_dir: str
    ledger: str
    control_address: tuple[str, int]

    async def of(self, spec: FaultSpec) -> list[FaultTarget]:
        """Every target that the fault can hit."""
        if spec.target is Target.PUSH:
            return await asyncio.to_thread(_ranks, spec)
        nodes = [node for node in self.nodes if spec.node in (None, node.address)]
        found: list[FaultTarget] = []
        for node in nodes:
            if spec.target in PROCESSES:
                for process in await answer_of(node.agent.target_processes.remote()) or ():
                    if process.target is spec.target:
                        name = f"{process.id.pid} on {node.address}"
                        found.append(self._target(name, node, spec, process))
            elif spec.target is Target.DISK:
                if await answer_of(node.agent.has_open.remote(self.ledger)):
                    found.append(self._target(node.address, node, spec, None, self.run_dir))
            elif len(self.nodes) > 1:
                found.append(self._target(node.address, node, spec))
        return found

    def _target(self, name: str, node: Node, *order: Any) -> FaultTarget:
        inject = partial(node.agent.inject.remote, *order, control_address=self.control_address)
        return FaultTarget(name=name, inject=inject)


def _ranks(spec: FaultSpec) -> list[FaultTarget]:
    """Ranks that allow fault injection into their sends."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in actors if one["namespace"] == NAMESPACE]
    return [
        FaultTarget(name=name, inject=partial(_spoil, name, spec))
        for name in sorted(names)
        if name.startswith(RANK_PREFIX)
    ]


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
