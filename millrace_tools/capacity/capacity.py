"""Checks that the nodes of a cluster have the resources that a deployment asks for."""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from millrace_tools.capacity.demands import MEMORY, Bundle, ResourceDemand, resources_text
from services.protocol.errors import InvalidInput

_NEGLIGIBLE = 1e-6  # Ray counts in ten-thousandths


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """Equal nodes.

    Attributes:
        count: number of nodes, or the most that an autoscaler may start.
        resources: of each, as Ray counts them.
        min_count: number that always run.
    """

    name: str
    count: int
    resources: Bundle
    min_count: int = 0


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The nodes of a cluster.

    Attributes:
        max_count: the most that an autoscaler runs at a time, of all types; None: all of them.
    """

    types: tuple[NodeType, ...]
    max_count: int | None = None

    @property
    def count(self) -> int:
        """The most nodes that run at a time."""
        together = sum(node.count for node in self.types)
        return together if self.max_count is None else min(together, self.max_count)

    def max_amount(self, resource: str) -> float:
        """The most of a resource that nodes which run at a time have."""
        runs = [one for one in self.types for _ in range(one.min_count)]
        may = [one for one in self.types for _ in range(one.count - one.min_count)]
        more = sorted((one.resources.get(resource, 0.0) for one in may), reverse=True)
        there = sum(one.resources.get(resource, 0.0) for one in runs)
        return there + sum(more[: max(0, self.count - len(runs))])

    @property
    def host_gib(self) -> float:
        """The most host memory of a node with GPUs, with Ray's object store; 0: none says it."""
        sizes = [
            sum(one.resources.get(name, 0.0) for name in MEMORY)
            for one in self.types
            if one.count and one.resources.get("GPU")
        ]
        return max(sizes, default=0.0) / 2**30

    def __str__(self) -> str:
        kinds = [f"{one.count} {one.name}: {resources_text(one.resources)}" for one in self.types]
        if self.count < sum(one.count for one in self.types):
            kinds.append(f"at most {self.count} at a time")
        return "; ".join(kinds)


class _Placement:
    """Places one demand after another on nodes, as Ray does.

    First fit; nodes with GPUs last. The caller places the largest first. Ray places in sequence
    as well, so a demand that does not fit here fits there by luck only.
    """

    def __init__(self, nodes: Nodes) -> None:
        every = [(one, index) for one in nodes.types for index in range(one.count)]
        every.sort(key=lambda one: one[0].resources.get("GPU", 0.0))
        self._free = [one.resources for one, _ in every]
        self._runs = [index < one.min_count for one, index in every]
        self._max_count = nodes.count

    def place(self, demand: ResourceDemand, count: int) -> int:
        """Place as many as fit of `count` equal replicas or actors; returns their number."""
        return sum(self._place_one(demand) for _ in range(count))

    def _place_one(self, demand: ResourceDemand) -> bool:
        free, runs, taken = [*self._free], [*self._runs], set[int]()
        for bundle in demand.indivisible:
            startable = sum(runs) < self._max_count  # another node
            fitting = (
                index
                for index, node in enumerate(free)
                if _holds(node, bundle) and (runs[index] or startable) and index not in taken
            )
            if (index := next(fitting, None)) is None:
                return False
            rest = {name: free[index].get(name, 0.0) - need for name, need in bundle.items()}
            free[index], runs[index] = {**free[index], **rest}, True
            if demand.strategy == "STRICT_SPREAD":
                taken.add(index)
        self._free, self._runs = free, runs
        return True


def check_capacity(demands: Sequence[ResourceDemand], nodes: Nodes, *, source: str) -> list[str]:
    """Refuse demands that the nodes cannot satisfy all at once.

    Args:
        demands: of all applications.
        nodes: of the cluster.
        source: the deployment file.

    Returns:
        A sentence for each demand that Serve could not scale to its maximum, or not replace.

    Raises:
        InvalidInput: a bundle is larger than every node, or not all of them fit together.
    """
    for demand in demands:
        for bundle in demand.indivisible:
            if not any(one.count and _holds(one.resources, bundle) for one in nodes.types):
                have = "; ".join(
                    f"{one.name}: {resources_text(one.resources)}" for one in nodes.types
                )
                fix = f"No node has so much ({have}): ask for less, or larger nodes."
                raise InvalidInput(f"{source}: {demand.owner}", resources_text(bundle), fix)
    placement = _Placement(nodes)
    ordered = sorted(demands, key=_size, reverse=True)
    for demand in ordered:
        placed = placement.place(demand, demand.count)
        if placed < demand.count:
            fix = (
                f"Only {placed} of them fit beside the rest, each with {_each(demand)} "
                f"({nodes}): fewer, or more nodes."
            )
            if any(bundle.get("GPU") for bundle in demand.bundles):
                fix += " Ranks and engines use the same GPUs with placement: shared alone"
                fix += " (docs/hardware.md)."
            raise InvalidInput(f"{source}: {demand.owner}", demand.count, fix)
    notes = [note for demand in ordered if (note := _unreplaceable(demand, placement))]
    for demand in ordered:
        fit = demand.count + placement.place(demand, demand.max_count - demand.count)
        if fit < demand.max_count:
            most = f"Serve may ask for {demand.max_count}, of which {fit} fit"
            notes.append(f"{demand.owner}: {most}")
    return notes


def _unreplaceable(demand: ResourceDemand, placement: _Placement) -> str:
    """Why a change of the demand's settings would wait for ever; empty where it would not.

    Serve replaces one replica after another where not all new ones fit.
    """
    if not demand.surge or copy(placement).place(demand, 1):
        return ""
    return (
        f"{demand.owner}: a change would wait for ever, for Serve starts a new one before it stops "
        f"an old one (max_surge_percent), and beside the rest {_each(demand)} does not fit"
    )


def _each(demand: ResourceDemand) -> str:
    shapes = Counter(map(resources_text, demand.indivisible))
    return " and ".join(f"{times} x ({shape})" for shape, times in shapes.items())


def _size(demand: ResourceDemand) -> tuple[float, float]:
    largest = max(demand.indivisible, key=lambda bundle: bundle.get("GPU", 0.0))
    return largest.get("GPU", 0.0), max(part.get("CPU", 0.0) for part in demand.indivisible)


def _holds(free: Bundle, bundle: Bundle) -> bool:
    return all(free.get(name, 0.0) >= need - _NEGLIGIBLE for name, need in bundle.items())
