"""Brings the relay of one node to the newest version, and repeats it after failures."""

import asyncio

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.weights.weight_bus import Phase, Report
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.delivery import route
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.reports import UpdateFailed
from services.weight_bus.delivery.route import Receiver
from services.weight_bus.delivery.transfer import Transfer
from services.weight_bus.members.relays import Relay

log = Log("weight_bus")


class RelayDelivery:
    """The versions of one relay: at most one on its way, always the newest."""

    def __init__(self, relay_id: str, context: DeliveryContext) -> None:
        self._relay_id, self._context = relay_id, context
        self._transfer = Transfer(relay_id, context)
        self._avoided: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Deliver for as long as the relay is known; ends only by cancellation."""
        try:
            while True:
                await self._context.changes.until(self._is_due, timeout_s=None)
                offer = self._offer()
                assert offer is not None, "_is_due"
                manifest, senders = offer
                try:
                    await self._receive(manifest, senders)
                except UpdateFailed as failed:
                    self._give_up(failed)
                    await self._transfer.back_off(manifest.version)
                # Edge of the loop: if it ended, the node would never be updated again.
                except Exception as error:
                    log.exception("delivery failed", relay=self._relay_id)
                    self._give_up(UpdateFailed(Phase.STAGE, f"{type(error).__name__}: {error}"))
                    await asyncio.sleep(self._context.config.retry_max_s)
        finally:
            self._transfer.drop_links()

    def take(self, report: Report) -> bool:
        """Hand in a report; False if it is not awaited."""
        return self._transfer.reports.take(report)

    def look_at_senders(self) -> None:
        """See `Transfer.look_at_senders`."""
        self._transfer.look_at_senders()

    @property
    def _relay(self) -> Relay | None:
        return self._context.relays.get(self._relay_id)

    def _is_due(self) -> bool:
        relay, offer = self._relay, self._offer()
        if relay is None or offer is None:
            return False
        relays = self._context.relays
        if not relays.alive(self._relay_id) or relays.is_passing_on(self._relay_id):
            return False  # the silent would fail, and that is no fault of theirs
        manifest, _ = offer
        is_older = relay.held is not None and manifest.version < relay.held.version
        return not relay.holds(manifest) and not is_older

    def _offer(self) -> tuple[WeightManifest, tuple[str, ...]] | None:
        failures = self._transfer.failures
        return route.senders_to_relay(self._context, self._relay_id, failures, self._avoided)

    async def _receive(self, manifest: WeightManifest, senders: tuple[str, ...]) -> None:
        relay, published = self._relay, self._context.newest()
        if relay is None or published is None:
            raise UpdateFailed(Phase.STAGE, "the relay left")
        self._transfer.use(senders, manifest.version)
        receiver = Receiver(
            member_id=self._relay_id,
            memory_domain=relay.hello.memory_domain,
            has_gpu=False,
            copy=relay.held.version if relay.held is not None else None,
        )
        # From here on nobody is sent to the old version, so no new reader comes.
        relay.arriving, relay.held = manifest, None
        ahead = self._context.relays.get(senders[0])
        relay.published_at = ahead.published_at if ahead is not None else published[1]
        self._context.changes.notify()
        in_place = not relay.is_read
        staged = await self._transfer.stage(receiver, manifest, in_place=in_place)
        if not in_place:
            relay.moved()
        self._transfer.end_links_of_peers()
        self._transfer.arrived()
        self._avoided = frozenset()
        relay.held, relay.place, relay.arriving = manifest, staged.place, None
        relay.failures = 0
        log.info(
            "relayed",
            relay=self._relay_id,
            version=manifest.version,
            seconds=round(staged.seconds, 3),
        )
        self._context.changes.notify()
        # The replicas of the node begin to load it before a newer version takes its place.
        await asyncio.sleep(0)

    def _give_up(self, failed: UpdateFailed) -> None:
        """What has arrived stays there; the next attempt avoids who was to send it."""
        self._transfer.failures += 1
        self._avoided |= frozenset(self._transfer.senders)
        BusMetrics.failures.inc(tags={"replica": self._relay_id, "phase": failed.phase})
        log.warning("relay failed", relay=self._relay_id, error=failed.error)
        self._transfer.drop_links()
        if self._relay is not None:
            self._relay.failures += 1
        self._context.changes.notify()
