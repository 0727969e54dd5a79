"""What a fault can be aimed at now, on all nodes of the cluster."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from millrace_tools.chaos.hand import Node
from millrace_tools.chaos.keeper import DONE
from millrace_tools.chaos.processes import Victim
from millrace_tools.chaos.script import PROCESSES, Deed, Target
from services.protocol.errors import NotReady
from services.protocol.trainer import RANK_PREFIX
from services.protocol.weights.weight_bus import NAMESPACE

_HAND_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One target of a fault.

    Attributes:
        name: for people.
        strike: begins it; what it returns is awaited for `keeper.DONE`, or why not.
    """

    name: str
    strike: Callable[[], Any]


class Aims:
    """Finds targets: processes by the hands on the nodes, ranks by their names.

    Args:
        nodes: all of the cluster.
        run_dir: of the run, whose disk may be filled.
        ledger: path of the run's ledger, which its orchestrator has open.
        lifeline: where the command listens, see `lifelines`.
    """

    def __init__(
        self, nodes: Sequence[Node], *, run_dir: str, ledger: str, lifeline: tuple[str, int]
    ) -> None:
        self._nodes, self._run_dir, self._ledger = nodes, run_dir, ledger
        self._lifeline = lifeline

    async def at(self, deed: Deed) -> list[Aim]:
        """Everything that the deed can be done to."""
        if deed.target in PROCESSES:
            return [
                self._aim(f"{victim.life.pid} on {node.address}", node, deed, victim)
                for node, victim in await self._victims(deed)
            ]
        if deed.target is Target.PUSH:
            return await asyncio.to_thread(_ranks, deed)
        if deed.target is Target.DISK:
            return [
                self._aim(node.address, node, deed, None, self._run_dir)
                for node in self._on(deed)
                if await within(node.hand.holds.remote(self._ledger))
            ]
        several = len(self._nodes) > 1
        return [self._aim(node.address, node, deed) for node in self._on(deed) if several]

    async def _victims(self, deed: Deed) -> list[tuple[Node, Victim]]:
        found: list[tuple[Node, Victim]] = []
        for node in self._on(deed):
            listed = await within(node.hand.victims.remote())
            found += [(node, one) for one in listed or () if one.target is deed.target]
        return found

    def _on(self, deed: Deed) -> list[Node]:
        return [node for node in self._nodes if deed.node in (None, node.address)]

    def _aim(self, name: str, node: Node, *order: Any) -> Aim:
        strike = partial(node.hand.strike.remote, *order, lifeline=self._lifeline)
        return Aim(name=name, strike=strike)


def _ranks(deed: Deed) -> list[Aim]:
    """Those that let themselves be told to spoil what they send."""
    named = ray.util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in named if one["namespace"] == NAMESPACE]
    return [
        Aim(name=name, strike=partial(_spoil, name, deed))
        for name in sorted(names)
        if name.startswith(RANK_PREFIX)
    ]


async def _spoil(name: str, deed: Deed) -> str:
    rank: Any = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
    try:
        await rank.spoil.remote(deed.fault)
    except NotReady as refusal:
        return str(refusal)
    return DONE


async def within(answer: Any) -> Any:
    """What is awaited; None if its node gives none in time."""
    try:
        async with asyncio.timeout(_HAND_S):
            return await answer
    except (TimeoutError, ValueError, ray.exceptions.RayError):  # the second: no such actor
        return None
