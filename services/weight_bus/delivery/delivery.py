"""Brings one replica to the newest version, and repeats it after failures."""

import asyncio
from contextlib import AbstractContextManager

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.observability.tracing import Span
from services.protocol.weights.weight_bus import (
    CommitWeights,
    Phase,
    ReplicaState,
    Report,
    StageWeights,
)
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.delivery import route
from services.weight_bus.delivery.canary import Canary
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.reports import UpdateFailed
from services.weight_bus.delivery.route import Receiver
from services.weight_bus.delivery.transfer import Transfer
from services.weight_bus.members.relays import Relay
from services.weight_bus.members.replicas import SERVING, Replica

log = Log("weight_bus")

_STRIKES = 3
"""Failed updates in a row after which a replica is no longer taken to be in service."""


class Delivery:
    """The updates of one replica: at most one at a time, always to the newest version."""

    def __init__(self, replica_id: str, context: DeliveryContext) -> None:
        self._replica_id = replica_id
        self._context = context
        self._transfer = Transfer(replica_id, context)
        self._canary = Canary(replica_id, context)

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
            self._transfer.drop_links()

    async def _bring_up_to_date(self) -> None:
        await self._context.changes.until(self._is_due, timeout_s=None)
        offer, relay = self._offer(), self._relay
        assert offer is not None, "_is_due"
        manifest, published_at = offer
        try:
            await self._update(manifest, published_at, relay)
            self._transfer.arrived()
            self._reads_no_more(relay)
        except UpdateFailed as failed:
            if not failed.silent:
                self._reads_no_more(relay)
            self._give_up(failed, manifest.version)
            await self._transfer.back_off(manifest.version)

    def _reads_no_more(self, relay: Relay | None) -> None:
        """The replica said how the update ended. One that says nothing may load what it has mapped
        when it is back, however long after."""
        if relay is not None:
            relay.readers.discard(self._replica_id)

    def take(self, report: Report) -> bool:
        """Hand in a report; False if it is not awaited."""
        if report.phase is not Phase.CANARY:
            return self._transfer.reports.take(report)
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
        """See `Transfer.look_at_senders`."""
        self._transfer.look_at_senders()

    @property
    def _replica(self) -> Replica | None:
        return self._context.replicas.get(self._replica_id)

    @property
    def _sleeps(self) -> bool:
        replica = self._replica
        return replica is not None and replica.sleeps

    @property
    def _relay(self) -> Relay | None:
        """The relay that receives for this replica."""
        replica = self._replica
        return self._context.relays.on(replica.hello.memory_domain) if replica else None

    def _offer(self) -> tuple[WeightManifest, float] | None:
        """The version that the replica can get, and when it was published.

        Of its node's relay what that holds, even if a newer one was published meanwhile: a trainer
        may publish faster than the network carries.
        """
        relay, newest = self._relay, self._context.newest()
        if newest is None:
            return None
        if relay is None:
            cannot = self._awaits_relay or self._senders(newest[0]) is None
            return None if cannot else newest
        held = relay.held
        if held is None or (held.version == newest[0].version and not relay.holds(newest[0])):
            return None  # or it has other bytes of that number, of a trainer before
        return held, relay.published_at

    @property
    def _awaits_relay(self) -> bool:
        """Whether the relay of its node may be about to be heard of: the bus has just begun, or the
        node was cut off.

        By itself the replica would hold a version beside the relay's. One that has loaded none yet
        does not wait.
        """
        replica = self._replica
        if replica is None or replica.committed_version is None:
            return False
        return self._context.relays.expected and self._context.replicas.returns(replica)

    def _is_due(self) -> bool:
        replica, offer = self._replica, self._offer()
        if replica is None or offer is None or replica.sleeps:
            return False  # asleep it could not load what it is sent
        version, held = offer[0].version, replica.committed_version
        if held is None or held < version:
            return True
        return replica.state is not ReplicaState.LIVE and held == version

    async def _update(
        self, manifest: WeightManifest, published_at: float, relay: Relay | None
    ) -> None:
        replica = self._replica
        started = published_at if replica is None else max(published_at, replica.registered_at)
        began = self._context.clock()
        with self._span("stage", manifest):
            staged = await self._stage(manifest, relay)
        await self._wait_for_others(manifest.version)
        with self._span("commit", manifest) as commit:
            committed = await self._commit(manifest)
            commit.set(paused_s=committed.paused_s)
        self._transfer.end_links_of_peers()
        is_joining = not self._in_service and replica is not None and not replica.was_leased
        if not self._in_service:
            with self._span("canary", manifest):
                await self._canary.passed(self._commit_timeout_s())
        self._context.replicas.commit(self._replica_id, manifest, received=relay is None)
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

    def _senders(self, manifest: WeightManifest) -> tuple[str, ...] | None:
        failures = self._transfer.failures
        return route.senders_to_replica(self._context, self._replica_id, manifest, failures)

    async def _stage(self, manifest: WeightManifest, relay: Relay | None) -> Report:
        live, replica = self._is(ReplicaState.LIVE), self._replica
        self._enter(ReplicaState.STAGING if live else ReplicaState.CATCHING_UP)
        assert replica is not None, "_enter"
        if relay is None:
            senders = self._senders(manifest)
            assert senders is not None, "_is_due"
            self._transfer.use(senders, manifest.version)
            return await self._transfer.stage(
                Receiver(
                    member_id=self._replica_id,
                    memory_domain=replica.hello.memory_domain,
                    has_gpu=replica.hello.has_gpu,
                    copy=replica.copy.version if replica.copy is not None else None,
                ),
                manifest,
            )
        self._transfer.drop_links()
        self._transfer.reports.expect(Phase.STAGE, manifest.version)
        relay.readers.add(self._replica_id)
        attempt = self._context.new_prefix(self._replica_id)
        order = StageWeights(manifest=manifest, place=relay.place, attempt=attempt)
        self._transfer.post(order, Phase.STAGE)
        return await self._transfer.reports.wait(self._context.config.stage_timeout_s)

    async def _wait_for_others(self, version: int) -> None:
        config = self._context.config
        if config.commit == "rolling" or not self._in_service:
            return
        timeout_s = config.stage_timeout_s
        if not await self._context.barrier.passed(self._replica_id, version, timeout_s=timeout_s):
            log.warning("barrier broken", replica=self._replica_id, version=version)

    async def _commit(self, manifest: WeightManifest) -> Report:
        reports = self._transfer.reports
        reports.expect(Phase.COMMIT, manifest.version)
        self._canary.expect(manifest)
        if self._is(ReplicaState.STAGING):
            self._enter(ReplicaState.COMMITTING)
        self._transfer.post(CommitWeights(version=manifest.version), Phase.COMMIT)
        return await reports.wait(self._commit_timeout_s())

    def _judge_in_service(self) -> None:
        """Take the lease from a replica whose answer is wrong; it is sent everything again."""
        wrong = self._canary.judged()
        if wrong is None:
            return
        version, problem = wrong
        self._context.ledger.failed(self._replica_id, version, f"{Phase.CANARY}: {problem}")
        self._transfer.failures += 1  # the next version is sent whole, not as changes
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
        if self._sleeps:
            self._interrupted(failed)
            return
        self._transfer.failures += 1
        BusMetrics.failures.inc(tags={"replica": self._replica_id, "phase": failed.phase})
        log.warning(
            "update failed",
            replica=self._replica_id,
            phase=failed.phase,
            error=failed.error,
            in_a_row=self._transfer.failures,
        )
        self._transfer.drop_links()
        if version is not None:
            self._context.ledger.failed(self._replica_id, version, str(failed))
        # A replica without a lease gets it back by a commit only.
        live = (
            self._is(ReplicaState.STAGING, ReplicaState.LIVE) and self._transfer.failures < _STRIKES
        )
        state = ReplicaState.LIVE if live else ReplicaState.CATCHING_UP
        if failed.silent or failed.phase in (Phase.COMMIT, Phase.CANARY):
            state = ReplicaState.SUSPECT
        if self._replica is not None:
            self._context.replicas.fail(self._replica_id, state, str(failed))
        self._context.changes.notify()

    def _interrupted(self, failed: UpdateFailed) -> None:
        """The engine was put to sleep in the middle, which is no fault of the update."""
        log.info("update interrupted", replica=self._replica_id, phase=failed.phase)
        self._transfer.drop_links()
        self._context.replicas.fail(self._replica_id, ReplicaState.CATCHING_UP, str(failed))
        self._context.changes.notify()

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
