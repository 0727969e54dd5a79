"""What a deployment asks of Ray: how many things, each with which resources."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Bundle = Mapping[str, float]
"""Amounts by resource, as Ray calls them: CPU, GPU, memory (bytes), or one of the user's."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Equal things that Ray places.

    Attributes:
        application: the one they belong to.
        deployment: whose replicas they are; None: they are no replicas.
        owner: what a message calls them, such as `rollout_server.args.replicas`.
        count: how many there are from the beginning.
        most: how many there may be once Serve has scaled them.
        bundles: what each of them asks for; each bundle is on one node.
        strategy: of the bundles of one: Ray's placement group strategy.
    """

    application: str
    deployment: str | None
    owner: str
    count: int
    most: int
    bundles: tuple[Bundle, ...]
    strategy: str = "PACK"

    @property
    def indivisible(self) -> tuple[Bundle, ...]:
        """What has to be on one node, a bundle each: all together where they are to be so."""
        return (total(self.bundles),) if self.strategy == "STRICT_PACK" else self.bundles

    @property
    def all_bundles(self) -> tuple[Bundle, ...]:
        """Of all that there are from the beginning."""
        return self.bundles * self.count

    @property
    def apart(self) -> bool:
        """Whether no two bundles of one may share a node."""
        return self.strategy == "STRICT_SPREAD"


def total(bundles: Sequence[Bundle]) -> Bundle:
    """Sum over the bundles, by resource."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


_BYTES = ("memory", "object_store_memory")


def in_words(bundle: Bundle) -> str:
    """Such as `4 CPU, 1 GPU`; what is 0 is left out."""
    return ", ".join(_amounts(bundle)) or "nothing"


def _amounts(bundle: Bundle) -> Iterator[str]:
    for name, amount in sorted(bundle.items()):
        if amount and name in _BYTES:
            yield f"{amount / 2**30:g} GiB {name}"
        elif amount:
            yield f"{amount:g} {name}"
