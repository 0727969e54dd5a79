"""The GPUs and CPU cores that files are made for."""

from dataclasses import dataclass
from typing import Literal

from services.protocol.errors import InvalidInput

SPARE = 0.1
"""Share of a GPU's memory that the sizing leaves free: it is an estimate."""
_CORES_OF_GPU = 16
_MOST_SLOTS = 96


@dataclass(frozen=True, kw_only=True)
class Cores:
    """CPU cores by what they are reserved for.

    Attributes:
        rank: for each rank.
        engine: for each engine.
        front: for the router, as many for the one that replaces it when its settings change, and
            as many for the orchestrator.
        slots: sandboxes, a core each.
    """

    rank: int
    engine: int
    front: int
    slots: int


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One node.

    Attributes:
        gpus: of the node.
        gpu_gib: memory of each.
        cpus: cores of the node; None: as many as such nodes usually have.
        host_gib: memory of the node; None: unknown, and enough.
        tier: of sandboxes that the node allows (docs/rewards.md).
    """

    gpus: int
    gpu_gib: float
    cpus: int | None = None
    host_gib: float | None = None
    tier: Literal["A", "B"] = "B"

    @property
    def usable_gib(self) -> float:
        """Memory of a GPU that settings may fill."""
        return (1 - SPARE) * self.gpu_gib

    @property
    def cores(self) -> int:
        """Cores of the node."""
        return self.cpus or _CORES_OF_GPU * self.gpus

    def divided(self, *, ranks: int, engines: int) -> Cores:
        """The cores, divided between the services; sandboxes get what is left.

        Raises:
            InvalidInput: none is left.
        """
        of_gpu = self.cores / self.gpus
        each = 4 if of_gpu >= 24 else 2 if of_gpu >= 6 else 1
        front = 2 if self.cores >= 64 else 1
        used = each * (ranks + engines) + 3 * front + 1  # bus and page take parts of one
        if self.cores <= used:
            fix = (
                f"{ranks} ranks and {engines} engines need {each} each, two routers, orchestrator "
                f"and the rest {3 * front + 1}, and each sandbox one: at least {used + 1}."
            )
            raise InvalidInput("--cpus", self.cores, fix)
        slots = min(_MOST_SLOTS, self.cores - used)
        return Cores(rank=each, engine=each, front=front, slots=slots)

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)} of {self.gpu_gib:g} GiB"
