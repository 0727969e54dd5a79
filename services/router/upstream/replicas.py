"""What every request needs to reach replicas."""

from dataclasses import dataclass, field

from services.router.config import RouterConfig
from services.router.placement.probes import Probes
from services.router.placement.reservations import Reservations
from services.router.sharing.sharing import ExchangePoint, Sharing
from services.router.upstream.upstream import Upstream


@dataclass(kw_only=True)
class Replicas:
    """Shared by all requests of one router.

    Attributes:
        config: the router's settings.
        reservations: places on leased replicas.
        upstream: the connections.
        point: where routers tell each other what they do; None: this one is alone.
        probed: whether they have the pages of vLLM that the router looks at.
    """

    config: RouterConfig
    reservations: Reservations
    upstream: Upstream
    point: ExchangePoint | None = None
    probed: bool = True
    _end_tokens: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._probes = Probes(self.config, self.reservations)
        self._sharing: Sharing | None = None
        if self.point is not None:
            self._sharing = Sharing(self.config, self.reservations, self.point)

    async def start(self) -> None:
        """Open the connections, watch the bus and look at replicas."""
        await self.upstream.start()
        self.reservations.membership.start()
        if self.probed:
            self._probes.start()
        if self._sharing is not None:
            self._sharing.start()

    async def stop(self) -> None:
        """End what `start` began."""
        if self._sharing is not None:
            await self._sharing.stop()
        await self._probes.stop()
        await self.reservations.membership.stop()
        self.reservations.queue.stop()
        await self.upstream.stop()

    def end_tokens(self, model: str) -> set[int]:
        """End-of-sequence tokens that the model has shown so far.

        A choice that ends with `stop` and without a stop reason has just shown one.
        """
        return self._end_tokens.setdefault(model, set())
