"""Brings one replica to the newest version, and repeats it after failures."""

import asyncio
from contextlib import AbstractContextManager

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.observability.tracing import Span
from services.protocol.weights.replica_control import Hold
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DropLinks,
    Order,
    Phase,
    ReplicaState,
    Report,
    SendWeights,
    StageWeights,
)
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.delivery import route
from services.weight_bus.delivery.canary import Canary
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.reports import Reports, UpdateFailed
from services.weight_bus.mailbox import MailboxFull
from services.weight_bus.members.replicas import SERVING, Replica

log = Log("weight_bus")

_STRIKES = 3
"""Failed updates in a row after which a replica is no longer taken to be in service."""


class Delivery:
    """The updates of one replica: at most one at a time, always to the newest version."""

    def __init__(self, replica_id: str, context: DeliveryContext) -> None:
        self._replica_id = replica_id
        self._context = context
        self._reports = Reports()
        self._prefix = ""
        self._senders: tuple[str, ...] = ()
        self._canary = Canary(replica_id, context)
        self._failures = 0  # in a row
        self._detours = 0  # versions in a row that did not arrive at the first attempt

    async def run(self) -> None:
        """Deliver for as long as the replica is known; ends only by cancellation."""
        try:
            while True:
                try:
                    await self._bring_up_to_date()
                # Edge of the loop: if it ended, the replica would never be updated again.
                except Exception as error:
                    log.exception("delivery failed", replica=self._replica_id)
                    failed = UpdateFailed(Phase.STAGE, f"{type(error).__name__}: {error}")
                    self._give_up(failed, version=None)
                    await asyncio.sleep(self._context.config.retry_max_s)
        finally:
            self._drop_links()

    async def _bring_up_to_date(self) -> None:
        await self._context.changes.until(self._is_due, timeout_s=None)
        manifest, published_at = self._newest()
        try:
            await self._update(manifest, published_at)
            if self._failures:
                self._drop_links()  # the next ones may go the way that had failed
                self._detours += 1
            elif self._detours < _STRIKES:
                self._detours = 0
            self._failures = 0
        except UpdateFailed as failed:
            self._give_up(failed, manifest.version)
            await self._back_off(manifest.version)

    def take(self, report: Report) -> bool:
        """Hand in a report; False if it is not awaited."""
        if report.phase is not Phase.CANARY:
            return self._reports.take(report)
        if not self._canary.take(report):
            return False
        self.look_at_canary()
        self._context.changes.notify()
        return True

    def look_at_canary(self) -> None:
        """Judge a replica in service as soon as its answer and the trainer's are both there."""
        if self._in_service and not self._is(ReplicaState.COMMITTING):
            self._judge_in_service()

    def look_at_senders(self) -> None:
        """End an update whose senders a new trainer has replaced.

        Else the replica would wait for them until its links' deadline.
        """
        current = self._context.trainers.current
        replaced = self._senders and current is not None and self._senders != current
        if replaced and self._context.replicas.get(self._senders[0]) is None:
            self._reports.give_up_stage("the trainer was replaced")

    @property
    def _replica(self) -> Replica | None:
        return self._context.replicas.get(self._replica_id)

    def _newest(self) -> tuple[WeightManifest, float]:
        newest = self._context.newest()
        assert newest is not None, "_is_due"
        return newest

    def _is_due(self) -> bool:
        replica, newest = self._replica, self._context.newest()
        if replica is None or newest is None or self._possible_senders(newest[0]) is None:
            return False
        if replica.held is Hold.ASLEEP:
            return False  # it could not load what it is sent
        held = replica.committed_version
        is_behind = held is None or held < newest[0].version
        return is_behind or replica.state is not ReplicaState.LIVE

    async def _update(self, manifest: WeightManifest, published_at: float) -> None:
        replica = self._replica
        started = published_at if replica is None else max(published_at, replica.registered_at)
        began = self._context.clock()
        self._open_epoch()
        with self._span("stage", manifest):
            staged = await self._stage(manifest)
        await self._wait_for_others(manifest.version)
        with self._span("commit", manifest) as commit:
            committed = await self._commit(manifest.version)
            commit.set(paused_s=committed.paused_s)
        if self._senders[0] not in (self._context.trainers.current or ()):
            self._drop_links()  # a peer sends once
        is_joining = not self._in_service and replica is not None and not replica.was_leased
        if manifest.canary and not self._in_service:
            with self._span("canary", manifest):
                await self._canary.passed(self._commit_timeout_s())
        self._context.replicas.commit(self._replica_id, manifest)
        self._context.ledger.committed(
            self._replica_id,
            manifest.version,
            seconds=self._context.clock() - began,
            stage_s=staged.seconds,
            commit_s=committed.seconds,
            paused_s=committed.paused_s,
        )
        if is_joining and replica is not None:
            self._note_first_lease(replica)
        # One in service is judged whenever its answer comes: it may be full of requests.
        self._judge_in_service()
        tags = {"replica": self._replica_id}
        BusMetrics.commits.inc(tags=tags)
        BusMetrics.push.observe(self._context.clock() - started, tags=tags)
        BusMetrics.paused.observe(committed.paused_s, tags=tags)
        log.info(
            "committed",
            replica=self._replica_id,
            version=manifest.version,
            seconds=round(self._context.clock() - started, 3),
            paused_s=round(committed.paused_s, 4),
        )
        self._context.changes.notify()

    def _span(self, name: str, manifest: WeightManifest) -> AbstractContextManager[Span]:
        """A part of the update, below the span of who published the version."""
        publisher = tracing.of(manifest.trace)
        return tracing.span(name, publisher, replica=self._replica_id, version=manifest.version)

    def _note_first_lease(self, replica: Replica) -> None:
        replica.was_leased = True
        waited_s = self._context.clock() - replica.registered_at
        BusMetrics.lease.observe(waited_s, tags={"replica": self._replica_id})
        log.info("first lease", replica=self._replica_id, seconds=round(waited_s, 3))

    def _possible_senders(self, manifest: WeightManifest) -> tuple[str, ...] | None:
        return route.senders(self._context, self._replica_id, manifest, self._failures)

    def _open_epoch(self) -> None:
        """Choose senders and a link prefix; both stay while the senders are the same."""
        senders = self._possible_senders(self._newest()[0])
        assert senders is not None, "_is_due"
        if self._prefix and senders != self._senders:
            self._drop_links()
        if not self._prefix:
            self._prefix = self._context.new_prefix(self._replica_id)
            self._senders = senders

    async def _stage(self, manifest: WeightManifest) -> Report:
        live = self._is(ReplicaState.LIVE)
        self._enter(ReplicaState.STAGING if live else ReplicaState.CATCHING_UP)
        links = await route.links(
            self._context,
            self._replica_id,
            self._prefix,
            self._senders,
            # A way that fails for every version is not tried for ever.
            plain=self._failures > 0 or self._detours >= _STRIKES,
        )
        base = route.base_of_changes(self._context, self._replica_id, manifest, self._failures)
        self._reports.expect(Phase.STAGE, manifest.version, self._prefix)
        stage = StageWeights(manifest=manifest, links=links, base=base)
        self._post(self._replica_id, stage, Phase.STAGE)
        for sender, link in zip(self._senders, links, strict=True):
            send = SendWeights(version=manifest.version, link=link, base=base)
            self._post(sender, send, Phase.SEND)
        return await self._reports.wait(self._context.config.stage_timeout_s)

    async def _wait_for_others(self, version: int) -> None:
        config = self._context.config
        if config.commit == "rolling" or not self._in_service:
            return
        timeout_s = config.stage_timeout_s
        if not await self._context.barrier.passed(self._replica_id, version, timeout_s=timeout_s):
            log.warning("barrier broken", replica=self._replica_id, version=version)

    async def _commit(self, version: int) -> Report:
        self._reports.expect(Phase.COMMIT, version)
        self._canary.expect(version)
        if self._is(ReplicaState.STAGING):
            self._enter(ReplicaState.COMMITTING)
        self._post(self._replica_id, CommitWeights(version=version), Phase.COMMIT)
        return await self._reports.wait(self._commit_timeout_s())

    def _judge_in_service(self) -> None:
        """Take the lease from a replica whose answer is wrong; it is sent everything again."""
        wrong = self._canary.judged()
        if wrong is None:
            return
        version, problem = wrong
        self._context.ledger.failed(self._replica_id, version, f"{Phase.CANARY}: {problem}")
        self._failures += 1  # the next version is sent whole, not as changes
        BusMetrics.failures.inc(tags={"replica": self._replica_id, "phase": Phase.CANARY})
        log.warning("canary died", replica=self._replica_id, why=problem)
        self._context.replicas.fail(self._replica_id, ReplicaState.SUSPECT, problem)
        self._context.changes.notify()

    def _commit_timeout_s(self) -> float:
        """The replica gives up by itself first, and says what went wrong."""
        replica = self._replica
        own_s = replica.hello.commit_timeout_s if replica is not None else 0.0
        return own_s + self._context.config.commit_margin_s

    def _give_up(self, failed: UpdateFailed, version: int | None) -> None:
        """A failed stage leaves the old version served; silence or a failed commit does not.

        Nor does failing again and again: those who wait for every replica in service to be
        up to date must not wait for this one.
        """
        self._failures += 1
        BusMetrics.failures.inc(tags={"replica": self._replica_id, "phase": failed.phase})
        log.warning(
            "update failed",
            replica=self._replica_id,
            phase=failed.phase,
            error=failed.error,
            in_a_row=self._failures,
        )
        self._drop_links()
        if version is not None:
            self._context.ledger.failed(self._replica_id, version, str(failed))
        # A replica without a lease gets it back by a commit only.
        live = self._is(ReplicaState.STAGING, ReplicaState.LIVE) and self._failures < _STRIKES
        state = ReplicaState.LIVE if live else ReplicaState.CATCHING_UP
        if failed.silent or failed.phase in (Phase.COMMIT, Phase.CANARY):
            state = ReplicaState.SUSPECT
        if self._replica is not None:
            self._context.replicas.fail(self._replica_id, state, str(failed))
        self._context.changes.notify()

    async def _back_off(self, version: int) -> None:
        """Pause until a newer version or a new trainer comes, or the pause is over."""
        config, trainers = self._context.config, self._context.trainers.current
        pause_s = min(config.retry_s * 2 ** min(self._failures - 1, 30), config.retry_max_s)
        await self._context.changes.until(
            lambda: (
                self._newest()[0].version != version
                or self._context.trainers.current not in (None, trainers)
            ),
            timeout_s=pause_s,
        )

    def _drop_links(self) -> None:
        """Cancel whatever is under way; the next update gets links of its own."""
        self._reports.forget()
        if not self._prefix:
            return
        order = DropLinks(replica_id=self._replica_id, prefix=self._prefix)
        for member in {self._replica_id, *self._senders}:
            try:
                self._context.post(member, order)
            except (MailboxFull, KeyError) as gone:
                log.info("links of a member that is gone", member=member, why=str(gone))
        self._prefix, self._senders = "", ()

    def _post(self, member_id: str, order: Order, phase: Phase) -> None:
        try:
            self._context.post(member_id, order)
        except (MailboxFull, KeyError) as error:
            raise UpdateFailed(phase, f"{member_id} takes no orders: {error}") from None

    def _enter(self, state: ReplicaState) -> None:
        if self._replica is None:
            raise UpdateFailed(Phase.STAGE, "the replica left")
        self._context.replicas.begin(self._replica_id, state)
        self._context.changes.notify()

    @property
    def _in_service(self) -> bool:
        return self._is(*SERVING)

    def _is(self, *states: ReplicaState) -> bool:
        return self._replica is not None and self._replica.state in states
