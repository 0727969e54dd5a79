"""What every request needs to reach replicas."""

from dataclasses import dataclass, field

from services.router.config import RouterConfig
from services.router.seats import Seats
from services.router.upstream import Upstream


@dataclass(kw_only=True)
class Replicas:
    """Shared by all requests of one router.

    Attributes:
        config: the router's settings.
        seats: places on leased replicas.
        upstream: the connections.
    """

    config: RouterConfig
    seats: Seats
    upstream: Upstream
    _end_tokens: dict[str, set[int]] = field(default_factory=dict)

    def end_tokens(self, model: str) -> set[int]:
        """End-of-sequence tokens that the model has shown so far.

        A choice that ends with `stop` and without a stop reason has just shown one.
        """
        return self._end_tokens.setdefault(model, set())
