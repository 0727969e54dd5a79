"""A rollout server's membership of the weight bus: register, take orders, report."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from services.bus_orders import follow_orders, report_end
from services.observability.log import Log
from services.observability.metrics import RolloutMetrics
from services.protocol.errors import NotReady
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.replica_control import ControlAction, ControlReplica
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DistrustWeights,
    DropLinks,
    Order,
    Orders,
    Phase,
    Report,
    SendWeights,
    StageWeights,
    WeightBus,
)
from services.protocol.weights.weights import WeightManifest
from services.retry import retrying
from services.rollout_server.control.replica_control import EngineControl
from services.rollout_server.control.start_up import StartPhase
from services.rollout_server.weights.canary import CanaryProver, Proof
from services.rollout_server.weights.engine_loader import EngineLoader
from services.side_by_side import cancel

_POLL_WAIT_S = 2.0
_RETRY_S = 0.25
_REPORT_TIMEOUT_S = 30.0
_MAX_WAITING_ORDERS = 256
_STOP_TIMEOUT_S = 2.0

log = Log("rollout_server")


class BusMember:
    """Keeps one replica on the bus for as long as it lives.

    Two tasks: one polls, so that the bus hears from the replica however long an order takes;
    one carries orders out, one after another, with receiving in the background so that an
    order to drop it can overtake. While the bus is away, generation goes on.

    Attributes:
        wanted_replicas: how many rollout servers a run has work for, as the bus last said.
    """

    def __init__(
        self,
        bus: WeightBus,
        loader: EngineLoader,
        prover: CanaryProver,
        control: EngineControl,
        hello: Callable[[WeightManifest | None, WeightManifest | None], ReplicaHello],
        *,
        reached: Callable[[StartPhase], None] = lambda phase: None,
    ) -> None:
        self._reached = reached
        self._bus = bus
        self._loader = loader
        self._prover, self._control = prover, control
        self._hello = hello
        self._id = hello(None, None).replica_id
        self.wanted_replicas: int | None = None
        self._orders: asyncio.Queue[Order] = asyncio.Queue(_MAX_WAITING_ORDERS)
        self._staging: tuple[StageWeights, asyncio.Task[None]] | None = None
        self._proving: asyncio.Task[None] | None = None
        self._sends: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start both tasks in the running loop."""
        self._tasks = [
            asyncio.create_task(self._poll(), name="bus poll"),
            asyncio.create_task(self._carry_out(), name="bus orders"),
        ]

    def check(self) -> None:
        """Answer if both tasks run, and the engine can follow orders.

        Raises:
            RuntimeError: one of them ended, or see `EngineControl.check`.
        """
        self._control.check()
        for task in self._tasks:
            if task.done():
                error = None if task.cancelled() else task.exception()
                raise RuntimeError(f"{task.get_name()} ended: {error}") from error

    async def stop(self) -> None:
        """End the tasks, then leave the bus: a poll under way would register again."""
        await self._end_proof()
        staging = [self._staging[1]] if self._staging else []
        await cancel(*self._tasks, *self._sends.values(), *staging)
        self._loader.receiver.close()
        with contextlib.suppress(NotReady, TimeoutError):
            await asyncio.wait_for(self._bus.leave(self._id), _STOP_TIMEOUT_S)

    async def _poll(self) -> None:
        def heard(orders: Orders) -> None:
            self.wanted_replicas = orders.wanted_replicas

        await follow_orders(
            self._bus,
            self._id,
            register=self._register,
            carry_out=self._orders.put,
            wait_s=_POLL_WAIT_S,
            heard=heard,
        )

    async def _register(self) -> None:
        await self._bus.register_replica(self._hello(self._loader.committed, self._loader.copy))
        self._reached(StartPhase.REGISTRATION)
        log.info("registered", replica=self._id, version=self._loader.committed_version)

    async def _carry_out(self) -> None:
        while True:
            order = await self._orders.get()
            if isinstance(order, StageWeights):
                await self._start_staging(order)
            elif isinstance(order, CommitWeights):
                await self._commit(order)
            elif isinstance(order, DistrustWeights):
                self._loader.distrust(order.version)
            elif isinstance(order, DropLinks):
                await self._drop(order)
            elif isinstance(order, ControlReplica):
                await self._carry_out_control(order)
            else:
                assert isinstance(order, SendWeights)
                self._start_send(order)

    async def _start_staging(self, order: StageWeights) -> None:
        if self._staging is not None and self._staging[0] == order:
            return
        await self._end_staging()
        self._staging = (order, asyncio.create_task(self._stage(order), name="staging"))

    async def _end_staging(self) -> None:
        if self._staging is not None:
            await cancel(self._staging[1])
            self._staging = None

    async def _stage(self, order: StageWeights) -> None:
        prefix = order.links[0].prefix if order.links else ""
        report = self._report(Phase.STAGE, order.manifest.version, prefix=prefix)
        await self._report_end(report, self._loader.stage(order))

    async def _commit(self, order: CommitWeights) -> None:
        # A proof under way would be about tokens of two versions.
        await self._end_proof()
        report, work = self._report(Phase.COMMIT, order.version), self._loader.commit(order.version)
        await self._report_end(report, work, lambda paused_s: {"paused_s": paused_s})
        committed = self._loader.committed
        if committed is None:
            return
        if self._loader.pageable and committed.version == order.version:
            self._count(Phase.COMMIT, "pageable")
        self._reached(StartPhase.FIRST_WEIGHTS)
        RolloutMetrics.version.set(committed.version, {"replica": self._id})
        if committed.version == order.version:
            self._proving = asyncio.create_task(self._prove(committed), name="canary")

    async def _carry_out_control(self, order: ControlReplica) -> None:
        if order.action in (ControlAction.SLEEP, ControlAction.LEND_DEVICE):
            await self._end_proof()  # its requests would wait for an engine that sleeps
        outcome = await self._control.carry_out(order, self._id)
        if outcome is None:
            return  # delivered again
        failed = outcome.error is not None or outcome.refusal is not None
        self._count(order.action, "failed" if failed else "done")
        await self._tell(lambda: self._bus.report_control(outcome))

    async def _prove(self, manifest: WeightManifest) -> None:
        """In the background of generation: it waits for its turn like any other request."""
        await self._report_end(
            self._report(Phase.CANARY, manifest.version),
            self._proof(manifest),
            lambda proof: {
                "canary_logprobs": proof.logprobs,
                "canary_unmoved": proof.unmoved,
                "not_as_sent": proof.not_as_sent,
            },
        )

    async def _proof(self, manifest: WeightManifest) -> Proof:
        wrong = await self._loader.read_back()
        if wrong is not None or not manifest.canary:
            return Proof(not_as_sent=wrong)
        await self._control.until_released()
        return await self._prover.prove(manifest)

    async def _end_proof(self) -> None:
        await cancel(self._proving)
        self._proving = None

    def _start_send(self, order: SendWeights) -> None:
        prefix = order.link.prefix
        if prefix in self._sends:
            return  # delivered again
        task = asyncio.create_task(self._send(order), name=f"seed {prefix}")
        self._sends[prefix] = task
        task.add_done_callback(lambda _: self._sends.pop(prefix, None))

    async def _send(self, order: SendWeights) -> None:
        """Stand in for a trainer rank; the receiver's vote tells the bus of success."""
        report = self._report(Phase.SEND, order.version, prefix=order.link.prefix)
        report = replace(report, replica_id=order.link.replica_id)
        await self._report_end(
            report, self._loader.receiver.send(order), lambda sent: {"sent_bytes": sent}
        )

    async def _drop(self, order: DropLinks) -> None:
        try:
            if order.replica_id == self._id:
                await self._end_staging()
                self._loader.drop(order.prefix)
            else:
                self._loader.receiver.end_sends(order.prefix)
        # This order has no report, so the failure is counted here.
        except Exception:
            log.exception("links could not be dropped", replica=self._id, prefix=order.prefix)
            self._count("drop", "failed")
            return
        self._count("drop", "done")

    def _report(self, phase: Phase, version: int, *, prefix: str = "") -> Report:
        return Report(
            member_id=self._id,
            replica_id=self._id,
            phase=phase,
            version=version,
            error=None,
            seconds=0.0,
            prefix=prefix,
        )

    async def _report_end(
        self,
        report: Report,
        work: Coroutine[Any, Any, Any],
        found: Callable[[Any], dict[str, Any]] = lambda result: {},
    ) -> None:
        """See `services.bus_orders.report_end`."""
        try:
            ended = await report_end(self._bus, report, work, found)
        except NotReady:
            self._count("report", "failed")
            return
        self._count(ended.phase, "failed" if ended.error else "done")
        if ended.error and ended.phase is not Phase.SEND:  # which the receiver says, too
            about = {"version": ended.version, "error": ended.error}
            log.warning(f"{ended.phase} failed", replica=self._id, **about)

    async def _tell(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await retrying(call, pauses=[_RETRY_S], timeout_s=_REPORT_TIMEOUT_S)
        except NotReady:
            # The bus has forgotten what it asked for; registering again tells it our version.
            self._count("report", "failed")

    def _count(self, order: str, result: str) -> None:
        RolloutMetrics.orders.inc(tags={"replica": self._id, "order": order, "result": result})
