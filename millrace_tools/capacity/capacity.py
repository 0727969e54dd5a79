"""Whether what a deployment asks for has room on the nodes of a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace_tools.capacity.claims import Bundle, Claim, in_words
from services.protocol.errors import InvalidInput

_NEGLIGIBLE = 1e-6  # Ray counts in ten-thousandths


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """Equal nodes.

    Attributes:
        name: what a message calls them.
        count: how many there are, or how many an autoscaler may start.
        resources: of each, as Ray counts them.
        always: how many of them run whether they are needed or not.
    """

    name: str
    count: int
    resources: Bundle
    always: int = 0


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Those of a cluster.

    Attributes:
        types: kinds of them.
        most: how many an autoscaler lets run at a time, of all kinds together; None: every one.
    """

    types: tuple[NodeType, ...]
    most: int | None = None

    @property
    def count(self) -> int:
        """How many may run at a time."""
        together = sum(node.count for node in self.types)
        return together if self.most is None else min(together, self.most)

    def most_of(self, resource: str) -> float:
        """What the nodes that may run at a time have of it at most."""
        runs = [one for one in self.types for _ in range(one.always)]
        may = [one for one in self.types for _ in range(one.count - one.always)]
        more = sorted((one.resources.get(resource, 0.0) for one in may), reverse=True)
        there = sum(one.resources.get(resource, 0.0) for one in runs)
        return there + sum(more[: max(0, self.count - len(runs))])


class _Node:
    """One node while it is filled; `runs`: an autoscaler need not start it any more."""

    def __init__(self, resources: Bundle, *, runs: bool) -> None:
        self.free = dict(resources)
        self.runs = runs

    def take(self, bundle: Bundle) -> None:
        for name, need in bundle.items():
            self.free[name] = self.free.get(name, 0.0) - need

    def give_back(self, bundle: Bundle) -> None:
        self.take({name: -need for name, need in bundle.items()})


class Room:
    """Nodes that are filled one claim after the other, the way that Ray fills them.

    First fit, the largest first, and nodes with GPUs last for what asks for none. Ray places
    one after the other as well, so what has no room here has none there without luck.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._types = nodes.types
        self._nodes = [
            _Node(one.resources, runs=number < one.always)
            for one in nodes.types
            for number in range(one.count)
        ]
        self._nodes.sort(key=lambda node: node.free.get("GPU", 0.0))
        self._startable = nodes.count - sum(node.runs for node in self._nodes)

    def place(self, claim: Claim) -> int:
        """Fill the nodes with what the claim has from the beginning; says how many had room."""
        return sum(self._place_one(claim) for _ in range(claim.count))

    def more(self, claim: Claim) -> int:
        """Fill the nodes with what Serve may add to the claim; says how many had room."""
        return sum(self._place_one(claim) for _ in range(claim.most - claim.count))

    def largest(self) -> str:
        """The kinds of nodes, in words."""
        return "; ".join(f"{node.name}: {in_words(node.resources)}" for node in self._types)

    def ever(self, bundle: Bundle) -> bool:
        """Whether an empty node of some type would hold the bundle."""
        return any(_holds(node.resources, bundle) for node in self._types if node.count)

    def _place_one(self, claim: Claim) -> bool:
        used: list[tuple[_Node, Bundle]] = []
        started: list[_Node] = []
        for bundle in claim.indivisible:
            taken = [node for node, _ in used] if claim.apart else []
            node = self._first(bundle, taken, startable=self._startable - len(started))
            if node is None:
                for other, part in used:
                    other.give_back(part)
                for other in started:
                    other.runs = False
                return False
            if not node.runs:
                node.runs = True
                started.append(node)
            node.take(bundle)
            used.append((node, bundle))
        self._startable -= len(started)
        return True

    def _first(self, bundle: Bundle, taken: list[_Node], *, startable: int) -> _Node | None:
        fitting = (node for node in self._nodes if _holds(node.free, bundle) and node not in taken)
        return next((node for node in fitting if node.runs or startable > 0), None)


def check_room(claims: Sequence[Claim], nodes: Nodes, *, source: str) -> list[str]:
    """Refuse claims that the nodes cannot hold all at once.

    Args:
        claims: of all applications.
        nodes: of the cluster.
        source: the deployment file.

    Returns:
        What Serve would not be able to do later, a sentence each.

    Raises:
        InvalidInput: a bundle is larger than every node, or not all have room together.
    """
    room = Room(nodes)
    for claim in claims:
        for bundle in claim.indivisible:
            if not room.ever(bundle):
                fix = f"No node has so much ({room.largest()}): ask for less, or larger nodes."
                raise InvalidInput(f"{source}: {claim.owner}", in_words(bundle), fix)
    ordered = sorted(claims, key=_size, reverse=True)
    for claim in ordered:
        placed = room.place(claim)
        if placed < claim.count:
            fix = (
                f"Only {placed} of them have room beside the rest, each with "
                f"{_each(claim)} ({_counted(nodes)}): fewer, or more nodes."
            )
            raise InvalidInput(f"{source}: {claim.owner}", claim.count, fix)
    return list(_later(ordered, room))


def _later(claims: Sequence[Claim], room: Room) -> Iterator[str]:
    for claim in claims:
        added = room.more(claim)
        if claim.count + added < claim.most:
            yield (
                f"{claim.owner}: Serve may ask for {claim.most}, of which "
                f"{claim.count + added} have room"
            )


def _each(claim: Claim) -> str:
    shapes = {in_words(bundle): 0 for bundle in claim.indivisible}
    for bundle in claim.indivisible:
        shapes[in_words(bundle)] += 1
    return " and ".join(f"{times} x ({shape})" for shape, times in shapes.items())


def _counted(nodes: Nodes) -> str:
    kinds = [f"{node.count} {node.name}: {in_words(node.resources)}" for node in nodes.types]
    if nodes.count < sum(node.count for node in nodes.types):
        kinds.append(f"at most {nodes.count} at a time")
    return "; ".join(kinds)


def _size(claim: Claim) -> tuple[float, float]:
    largest = max(claim.indivisible, key=lambda bundle: bundle.get("GPU", 0.0))
    return largest.get("GPU", 0.0), max(part.get("CPU", 0.0) for part in claim.indivisible)


def _holds(free: Bundle, bundle: Bundle) -> bool:
    return all(free.get(name, 0.0) >= need - _NEGLIGIBLE for name, need in bundle.items())
