"""Following the weight bus: a member registers, polls for orders, and reports how each ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import Order, Orders, Report, WeightBus
from services.retry import retrying

_RETRY_S = 0.25
_REPORT_S = 30.0


async def follow_orders(
    bus: WeightBus,
    member_id: str,
    *,
    register: Callable[[], Awaitable[None]],
    carry_out: Callable[[Order], Awaitable[None]],
    wait_s: float,
    heard: Callable[[Orders], None] = lambda orders: None,
) -> None:
    """Follow the bus until cancelled; an absent one is tried again for ever.

    Args:
        bus: the bus.
        member_id: name under which the member registers.
        register: tells the bus of the member; called again when the bus has forgotten it.
        carry_out: begins an order; must not wait for its end, or the bus takes the member for dead.
        wait_s: longest that the bus holds a poll open; well below the silence that it bears.
        heard: is called with every answer.
    """
    registered, acknowledged = False, 0
    while True:
        try:
            if not registered:
                await register()
                registered, acknowledged = True, 0
            orders = await bus.next_orders(member_id, acknowledged, wait_s)
        except NotReady:
            await asyncio.sleep(_RETRY_S)
            continue
        registered = orders.known
        if not orders.known:
            continue
        for order in orders.orders:
            await carry_out(order)
        acknowledged = orders.last
        heard(orders)


async def report_end(
    bus: WeightBus,
    report: Report,
    work: Coroutine[Any, Any, Any],
    found: Callable[[Any], dict[str, Any]] = lambda result: {},
) -> Report:
    """Do the work of an order and report how it ended; only cancellation leaves it unreported.

    Args:
        bus: the bus.
        report: what is known before.
        work: ends with a result, or an error.
        found: the fields of the report that the result has.

    Returns:
        What was reported.

    Raises:
        NotReady: the bus was away for too long and does not know how it ended. It has forgotten
            what it asked for; registering again tells it what the member has.
    """
    began, error = time.monotonic(), None
    try:
        report = replace(report, **found(await work))
    # Edge of an order: every error is reported to the bus.
    except Exception as failure:  # noqa: BLE001
        error = f"{type(failure).__name__}: {failure}"
    ended = replace(report, error=error, seconds=time.monotonic() - began)
    await retrying(lambda: bus.report(ended), pauses=[_RETRY_S], timeout_s=_REPORT_S)
    return ended
