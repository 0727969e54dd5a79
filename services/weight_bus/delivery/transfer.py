"""A version on its way to one receiver: links, orders, and what is tried after a failure."""

from services.observability.log import Log
from services.protocol.weights.weight_bus import (
    DropLinks,
    Order,
    Phase,
    Report,
    SendWeights,
    StageWeights,
)
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.delivery import route
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.reports import Reports, UpdateFailed
from services.weight_bus.delivery.route import Receiver
from services.weight_bus.mailbox import MailboxFull

log = Log("weight_bus")

_STRIKES = 3
_AGAIN = 32
"""Versions that go over TCP after as many as `_STRIKES` whose own way failed."""


class Transfer:
    """The links to a replica or a node's relay; they stay while their senders are the same.

    Attributes:
        reports: what the members say of it.
        senders: one for each trainer rank, empty without links.
        failures: attempts in a row that failed.
    """

    def __init__(self, receiver_id: str, context: DeliveryContext) -> None:
        self._receiver_id, self._context = receiver_id, context
        self.reports = Reports()
        self.senders: tuple[str, ...] = ()
        self.failures = 0
        self._prefix = ""
        self._ordered: int | None = None  # version that these links were last to carry
        # Versions in a row whose own way failed; from `_STRIKES` on, those that went over TCP, too.
        self._detours = 0

    def use(self, senders: tuple[str, ...], version: int) -> None:
        """Choose the senders of a version; other ones get links of their own.

        So does a version that these links have carried: both ends would take the order for the one
        before, delivered again.
        """
        if self._prefix and (senders != self.senders or version == self._ordered):
            self.drop_links()
        if not self._prefix:
            self._prefix = self._context.new_prefix(self._receiver_id)
            self.senders = senders

    async def stage(
        self, receiver: Receiver, manifest: WeightManifest, *, in_place: bool = False
    ) -> Report:
        """Have the chosen senders send a version; returns the receiver's vote.

        Raises:
            UpdateFailed: it did not arrive.
        """
        context = self._context
        # A way that fails for every version is not tried for every version.
        plain = self.failures > 0 or self._detours >= _STRIKES
        links = await route.links(context, receiver, self._prefix, self.senders, plain=plain)
        base = route.base_of_changes(context, receiver, manifest, self.failures)
        self.reports.expect(Phase.STAGE, manifest.version, self._prefix)
        self._ordered = manifest.version
        order = StageWeights(manifest=manifest, links=links, base=base, in_place=in_place)
        with context.relays.feeding(self.senders, self._receiver_id, manifest.version):
            self.post(order, Phase.STAGE)
            for link in links:
                send = SendWeights(version=manifest.version, link=link, base=base)
                self._post(self.senders[link.trainer_rank], send, Phase.SEND)
            return await self.reports.wait(context.config.stage_timeout_s)

    def arrived(self) -> None:
        """The version is where it was to go."""
        if self.failures:
            self.drop_links()  # the next ones may go the way that had failed
            self._detours += 1
        elif self._detours < _STRIKES:
            self._detours = 0
        elif self._detours < _STRIKES + _AGAIN:
            self._detours += 1
        else:
            self.drop_links()
            self._detours = _STRIKES - 1  # what had failed may work by now
        self.failures = 0

    def end_links_of_peers(self) -> None:
        """The version has come over them: whoever stands in for the trainer sends once."""
        if self.senders and self.senders[0] not in (self._context.trainers.current or ()):
            prefix = self._prefix
            self.drop_links()
            self._context.forget_keys(prefix)  # both ends have met, and never do again

    async def back_off(self, version: int) -> None:
        """Pause until a newer version or a new trainer comes, or the pause is over."""
        config, trainers = self._context.config, self._context.trainers.current
        pause_s = min(config.retry_s * 2 ** min(self.failures - 1, 30), config.retry_max_s)

        def is_new() -> bool:
            newest = self._context.newest()
            other = self._context.trainers.current not in (None, trainers)
            return other or (newest is not None and newest[0].version != version)

        await self._context.changes.until(is_new, timeout_s=pause_s)

    def look_at_senders(self) -> None:
        """End an update whose senders a new trainer has replaced, or whose relay is dead.

        Else the receiver would wait for them until its links' deadline.
        """
        if not self.senders:
            return
        replicas, relays = self._context.replicas, self._context.relays
        sender, current = self.senders[0], self._context.trainers.current
        stands_in = replicas.get(sender) or relays.get(sender)
        if stands_in is None and current not in (None, self.senders):
            self.reports.give_up_stage("the senders were replaced")
        elif relays.dead(sender):
            self.reports.give_up_stage(f"{sender} is silent")

    def drop_links(self) -> None:
        """Cancel whatever is under way; the next update gets links of its own."""
        self.reports.forget()
        if not self._prefix:
            return
        order = DropLinks(replica_id=self._receiver_id, prefix=self._prefix)
        for member in {self._receiver_id, *self.senders}:
            try:
                self._context.post(member, order)
            except (MailboxFull, KeyError) as gone:
                log.info("links of a member that is gone", member=member, why=str(gone))
        self._prefix, self.senders, self._ordered = "", (), None

    def post(self, order: Order, phase: Phase) -> None:
        """Give the receiver an order.

        Raises:
            UpdateFailed: it takes none.
        """
        self._post(self._receiver_id, order, phase)

    def _post(self, member_id: str, order: Order, phase: Phase) -> None:
        try:
            self._context.post(member_id, order)
        except (MailboxFull, KeyError) as error:
            raise UpdateFailed(phase, f"{member_id} takes no orders: {error}") from None
