"""What every request needs to reach replicas."""

from dataclasses import dataclass, field

from services.router.config import RouterConfig
from services.router.probes import Probes
from services.router.seats import Seats
from services.router.upstream import Upstream


@dataclass(kw_only=True)
class Replicas:
    """Shared by all requests of one router.

    Attributes:
        config: the router's settings.
        seats: places on leased replicas.
        upstream: the connections.
        probed: whether they have the pages of vLLM that the router looks at.
    """

    config: RouterConfig
    seats: Seats
    upstream: Upstream
    probed: bool = True
    _end_tokens: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._probes = Probes(self.config, self.seats)

    async def start(self) -> None:
        """Open the connections, watch the bus and look at replicas."""
        await self.upstream.start()
        self.seats.membership.start()
        if self.probed:
            self._probes.start()

    async def stop(self) -> None:
        """End what `start` began."""
        await self._probes.stop()
        await self.seats.membership.stop()
        self.seats.lines.stop()
        await self.upstream.stop()

    def end_tokens(self, model: str) -> set[int]:
        """End-of-sequence tokens that the model has shown so far.

        A choice that ends with `stop` and without a stop reason has just shown one.
        """
        return self._end_tokens.setdefault(model, set())
