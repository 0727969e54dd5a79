"""Devices that replicas share with the trainer: lent to it for its turn, and taken back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.changes import Changes
from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.replica_control import ControlAction, ControlFailed, Hold
from services.protocol.weights.weight_bus import LOAN_S
from services.side_by_side import cancel
from services.weight_bus.control import Control
from services.weight_bus.members.replicas import Replicas

_ORDER_S = 90.0
_RETRY_S = 1.0
_FREE = (Hold.LENT, Hold.ASLEEP)

log = Log("weight_bus")


@dataclass(frozen=True)
class _Loan:
    """Who has the devices, and until when."""

    borrower: str
    ends_at: float


class Lending:
    """At most one loan of all shared devices; orders are repeated until each replica follows.

    Args:
        replicas: which of them share devices, and what holds each.
        control: sends orders to replicas.
        changes: notified when a replica has carried out an order.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        replicas: Replicas,
        control: Control,
        changes: Changes,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._replicas, self._control, self._changes = replicas, control, changes
        self._clock = clock
        self._loan: _Loan | None = None
        self._freed: set[str] = set()
        self._owed: set[str] = set()  # a device to those that lent theirs, until they have it back
        self._orders: dict[str, asyncio.Task[None]] = {}
        self._next_try: dict[str, float] = {}

    async def lend(self, borrower: str, wait_s: float) -> tuple[str, ...]:
        """See `services.protocol.weights.weight_bus.WeightBus.lend_devices`."""
        if self._loan is None or self._loan.borrower != borrower:
            log.info("devices lent", borrower=borrower, replicas=list(self._replicas.sharing))
        self._loan = _Loan(borrower, self._clock() + LOAN_S)
        self.order_missing()
        await self._changes.until(lambda: not self._in_use, timeout_s=wait_s)
        return self._in_use

    def end(self, borrower: str) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus.return_devices`."""
        if self._loan is not None and self._loan.borrower == borrower:
            log.info("devices returned", borrower=borrower)
            self._loan = None
            self._next_try.clear()
            self.order_missing()

    def registered(self, replica_id: str, held: Hold) -> None:
        """A replica has said what holds it, as after a restart of the bus."""
        if held is Hold.LENT:
            self._freed.add(replica_id)
            self._owed.add(replica_id)
        self.order_missing()

    def expire(self) -> None:
        """End a loan whose borrower is silent, and repeat orders that failed."""
        if self._loan is not None and self._clock() > self._loan.ends_at:
            log.warning("loan of devices expired", borrower=self._loan.borrower)
            BusMetrics.loans_expired.inc()
            self._loan = None
        self.order_missing()

    def order_missing(self) -> None:
        """Order each replica that is not as the loan wants it, unless an order is under way."""
        sharing = self._replicas.sharing
        self._freed &= sharing.keys()
        self._owed &= sharing.keys()
        self._next_try = {one: at for one, at in self._next_try.items() if one in sharing}
        for replica_id, held in sharing.items():
            if self._loan is not None and replica_id not in self._freed:
                self._begin(replica_id, ControlAction.LEND_DEVICE)
            elif self._loan is None and (replica_id in self._owed or held is Hold.LENT):
                self._begin(replica_id, ControlAction.TAKE_DEVICE)

    async def close(self) -> None:
        """End every order under way."""
        await cancel(*self._orders.values())

    @property
    def _in_use(self) -> tuple[str, ...]:
        """Replicas whose devices are not free."""
        return tuple(one for one in self._replicas.sharing if one not in self._freed)

    def _begin(self, replica_id: str, action: ControlAction) -> None:
        if replica_id in self._orders or self._clock() < self._next_try.get(replica_id, 0.0):
            return
        if action is ControlAction.TAKE_DEVICE:
            self._freed.discard(replica_id)
        task = asyncio.create_task(self._order(replica_id, action), name=f"{action} {replica_id}")
        self._orders[replica_id] = task

    async def _order(self, replica_id: str, action: ControlAction) -> None:
        try:
            outcome = await self._control.give_order(replica_id, action, _ORDER_S)
        except (ControlFailed, InvalidInput) as error:
            self._next_try[replica_id] = self._clock() + _RETRY_S
            BusMetrics.loan_failures.inc(tags={"replica": replica_id, "order": action})
            log.warning("loan failed", replica=replica_id, order=action, why=str(error))
        else:
            if action is ControlAction.TAKE_DEVICE:
                self._owed.discard(replica_id)
            elif outcome.held in _FREE:
                self._freed.add(replica_id)
                self._owed.add(replica_id)
        finally:
            del self._orders[replica_id]
            self._changes.notify()
        self.order_missing()  # the loan may have begun or ended meanwhile
