"""Orders for one member: numbered, and delivered again until acknowledged."""

from collections import deque

from services.protocol.weights.weight_bus import Order

CAPACITY = 1024
"""Orders that a member may leave unacknowledged."""


class MailboxFull(RuntimeError):
    """A member takes no orders any more."""


class Mailbox:
    """Orders in the order in which they must be carried out; numbers start at 1.

    Attributes:
        last: number of the last order posted, 0 before the first.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Order]] = deque()
        self.last = 0

    def post(self, order: Order) -> None:
        """Append an order.

        Raises:
            MailboxFull: the member has left `CAPACITY` orders unacknowledged.
        """
        if len(self._waiting) >= CAPACITY:
            raise MailboxFull(f"{CAPACITY} orders are not acknowledged")
        self.last += 1
        self._waiting.append((self.last, order))

    def acknowledge(self, number: int) -> None:
        """Forget orders up to `number`."""
        while self._waiting and self._waiting[0][0] <= number:
            self._waiting.popleft()

    @property
    def waiting(self) -> tuple[Order, ...]:
        """Orders that are not acknowledged."""
        return tuple(order for _, order in self._waiting)
