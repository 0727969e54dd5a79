"""Requests to replicas to stop or begin their work: sends orders and waits for their outcomes."""

import asyncio
from collections.abc import Callable

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlFailed,
    ControlOutcome,
    ControlReplica,
    Hold,
    check_control,
)
from services.protocol.weights.weight_bus import Order
from services.weight_bus.mailbox import MailboxFull
from services.weight_bus.members.replicas import Replicas

_HOLDS = {
    ControlAction.PAUSE: Hold.PAUSED,
    ControlAction.SLEEP: Hold.ASLEEP,
    ControlAction.LEND_DEVICE: Hold.LENT,
}

log = Log("weight_bus")


class Control:
    """Orders that are under way: those of operators, and those of `Lending`.

    Args:
        replicas: where the hold of a replica is kept.
        post: put an order into a replica's mailbox.
        changed: wake all waiters, so that they look at the table again.
        new_id: an id that was never used before.
    """

    def __init__(
        self,
        replicas: Replicas,
        *,
        post: Callable[[str, Order], None],
        changed: Callable[[], None],
        new_id: Callable[[], str],
    ) -> None:
        self._replicas, self._post = replicas, post
        self._changed, self._new_id = changed, new_id
        self._open: dict[str, tuple[str, asyncio.Future[ControlOutcome]]] = {}

    async def order(
        self, replica_id: str, action: str, level: int | None, timeout_s: float
    ) -> ControlOutcome:
        """See `services.protocol.weights.weight_bus.WeightBus.control`."""
        try:
            order = self._check(replica_id, action, level)
        except InvalidInput:
            BusMetrics.refusals.inc(tags={"what": "control"})
            raise
        return await self._carry_out(replica_id, order, timeout_s)

    async def give_order(
        self, replica_id: str, action: ControlAction, timeout_s: float
    ) -> ControlOutcome:
        """Give the bus's own order to a replica that is in the table; else as `order`."""
        order = ControlReplica(control_id=self._new_id(), action=action, level=None)
        return await self._carry_out(replica_id, order, timeout_s)

    async def _carry_out(
        self, replica_id: str, order: ControlReplica, timeout_s: float
    ) -> ControlOutcome:
        outcome: asyncio.Future[ControlOutcome] = asyncio.get_running_loop().create_future()
        self._open[order.control_id] = replica_id, outcome
        held = _HOLDS.get(order.action)
        if held is not None:
            # The router must look elsewhere before its requests are ended.
            self._replicas.hold(replica_id, held)
            self._changed()
        try:
            self._post(replica_id, order)
            async with asyncio.timeout(timeout_s):
                done = await outcome
        except (MailboxFull, KeyError) as error:
            raise ControlFailed(f"{replica_id} takes no orders: {error}") from None
        except TimeoutError:
            raise ControlFailed(
                f"{replica_id} has not said in {timeout_s:g} s how {order.action} ended"
            ) from None
        finally:
            del self._open[order.control_id]
        return self._judged(order.action, done)

    def take(self, outcome: ControlOutcome) -> None:
        """Take a replica's report; its state counts even if the caller has given up."""
        self._replicas.note_outcome(outcome)
        self._changed()
        _, waiting = self._open.get(outcome.control_id, ("", None))
        if waiting is None or waiting.done():
            BusMetrics.dropped_reports.inc()
        else:
            waiting.set_result(outcome)

    def forget(self, replica_id: str) -> None:
        """The replica is gone, and will not report."""
        for one, outcome in self._open.values():
            if one == replica_id and not outcome.done():
                outcome.set_exception(ControlFailed(f"{replica_id} is gone"))

    def _check(self, replica_id: str, action: str, level: int | None) -> ControlReplica:
        known, level = check_control(action, level)
        if self._replicas.get(replica_id) is None:
            names = ", ".join(self._replicas.replica_ids) or "there is none"
            raise InvalidInput("replica", replica_id, f"Use one of: {names}.")
        return ControlReplica(control_id=self._new_id(), action=known, level=level)

    def _judged(self, action: ControlAction, done: ControlOutcome) -> ControlOutcome:
        log.info(
            "control",
            replica=done.replica_id,
            action=action,
            held=done.held,
            error=done.error or done.refusal,
        )
        if done.refusal is not None:
            BusMetrics.refusals.inc(tags={"what": "control"})
            raise done.refusal
        if done.error is not None:
            raise ControlFailed(f"{done.replica_id}: {action} failed: {done.error}")
        return done
