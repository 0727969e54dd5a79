"""Whether what a deployment asks for has room on the nodes of a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.cli.claims import Bundle, Claim, in_words
from services.protocol.errors import InvalidInput

_NEGLIGIBLE = 1e-6  # Ray counts in ten-thousandths


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """Equal nodes.

    Attributes:
        name: what a message calls them.
        count: how many there are, or how many an autoscaler may start.
        resources: of each, as Ray counts them.
    """

    name: str
    count: int
    resources: Bundle


class Room:
    """Nodes that are filled one claim after the other, the way that Ray fills them.

    First fit, the largest first, and nodes with GPUs last for what asks for none. Ray places
    one after the other as well, so what has no room here has none there without luck.
    """

    def __init__(self, nodes: Sequence[NodeType]) -> None:
        self._types = nodes
        self._free = [dict(node.resources) for node in nodes for _ in range(node.count)]
        self._free.sort(key=lambda free: free.get("GPU", 0.0))

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
        used: list[tuple[dict[str, float], Bundle]] = []
        for bundle in claim.indivisible:
            taken = [free for free, _ in used] if claim.apart else []
            free = self._first(bundle, taken)
            if free is None:
                for node, part in used:
                    _take(node, part, -1.0)
                return False
            _take(free, bundle, 1.0)
            used.append((free, bundle))
        return True

    def _first(self, bundle: Bundle, taken: list[dict[str, float]]) -> dict[str, float] | None:
        fitting = (free for free in self._free if _holds(free, bundle))
        return next((free for free in fitting if all(free is not one for one in taken)), None)


def check_room(claims: Sequence[Claim], nodes: Sequence[NodeType], *, source: str) -> list[str]:
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


def _counted(nodes: Sequence[NodeType]) -> str:
    return "; ".join(f"{node.count} {node.name}: {in_words(node.resources)}" for node in nodes)


def _size(claim: Claim) -> tuple[float, float]:
    largest = max(claim.indivisible, key=lambda bundle: bundle.get("GPU", 0.0))
    return largest.get("GPU", 0.0), max(part.get("CPU", 0.0) for part in claim.indivisible)


def _holds(free: Bundle, bundle: Bundle) -> bool:
    return all(free.get(name, 0.0) >= need - _NEGLIGIBLE for name, need in bundle.items())


def _take(free: dict[str, float], bundle: Bundle, sign: float) -> None:
    for name, need in bundle.items():
        free[name] = free.get(name, 0.0) - sign * need
