"""The resources that a deployment asks of Ray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Bundle = Mapping[str, float]
"""Amounts by Ray's name of the resource: CPU, GPU, memory (bytes), or a custom resource."""

MEMORY = ("memory", "object_store_memory")


@dataclass(frozen=True, kw_only=True)
class ResourceDemand:
    """Equal replicas or actors that Ray places.

    Attributes:
        application: the one they belong to.
        deployment: of the replicas; None for actors.
        owner: the setting that asks for them, such as `rollout_server.args.replicas`.
        count: number at the start.
        max_count: number to which Serve may scale them.
        surge: number that Serve starts before it stops as many, when their settings change.
        bundles: resources of each; a bundle is on one node.
        strategy: Ray's placement group strategy of the bundles.
    """

    application: str
    deployment: str | None
    owner: str
    count: int
    max_count: int
    bundles: tuple[Bundle, ...]
    surge: int = 0
    strategy: str = "PACK"

    @property
    def indivisible(self) -> tuple[Bundle, ...]:
        """The bundles that are placed as one: with STRICT_PACK their sum."""
        return (total(self.bundles),) if self.strategy == "STRICT_PACK" else self.bundles


def total(bundles: Sequence[Bundle]) -> Bundle:
    """Sum over the bundles, by resource."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def resources_text(bundle: Bundle) -> str:
    """Such as `4 CPU, 1 GPU`, without resources of which there are 0."""
    amounts = (
        f"{amount / 2**30:g} GiB {name}" if name in MEMORY else f"{amount:g} {name}"
        for name, amount in sorted(bundle.items())
        if amount
    )
    return ", ".join(amounts) or "nothing"
