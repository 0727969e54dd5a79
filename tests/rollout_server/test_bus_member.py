"""A replica's membership, against a scripted bus."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from services.observability.metrics import RolloutMetrics
from services.protocol.errors import NotReady
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DropLinks,
    Link,
    Order,
    Orders,
    Phase,
    Report,
    SendWeights,
    StageWeights,
)
from services.protocol.weights.weights import WeightManifest
from services.rollout_server.control import bus_member
from services.rollout_server.control.bus_member import BusMember
from services.rollout_server.weights.canary import Proof

Sequences = tuple[tuple[int, ...], ...]
DEADLINE_S = 300.0


class ScriptedBus:
    """Gives the orders that the test puts in; can be away or forgetful."""

    def __init__(self) -> None:
        self.away = False
        self.known = False
        self.polling = False
        self.hellos: asyncio.Queue[ReplicaHello] = asyncio.Queue()
        self.orders: asyncio.Queue[Order] = asyncio.Queue()
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.outcomes: asyncio.Queue[ControlOutcome] = asyncio.Queue()
        self.left: list[str] = []
        self.refused = asyncio.Event()
        self._last = 0

    async def register_replica(self, hello: ReplicaHello) -> None:
        self._refuse_if_away()
        self.known = True
        self.hellos.put_nowait(hello)

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        self._refuse_if_away()
        if not self.known:
            return Orders(known=False, last=0, orders=())
        self.polling = True
        try:
            order = await asyncio.wait_for(self.orders.get(), 0.01)
        except TimeoutError:
            return Orders(known=self.known, last=self._last, orders=())
        finally:
            self.polling = False
        self._last += 1
        return Orders(known=True, last=self._last, orders=(order,))

    async def report(self, report: Report) -> None:
        self._refuse_if_away()
        self.reports.put_nowait(report)

    async def report_control(self, outcome: ControlOutcome) -> None:
        self._refuse_if_away()
        self.outcomes.put_nowait(outcome)

    async def leave(self, member_id: str) -> None:
        assert not self.polling, "the poll under way would register again"
        self.left.append(member_id)

    def _refuse_if_away(self) -> None:
        if self.away:
            self.refused.set()
            raise NotReady("away")


class ScriptedLoader:
    """An engine loader whose stages end when the test says so."""

    def __init__(self) -> None:
        self.committed: WeightManifest | None = None
        self.canary: Sequences = ()
        self.gates: dict[str, asyncio.Event] = {}
        self.stages: list[str] = []
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self.sends: list[str] = []
        self.ended: list[str] = []
        self.error: Exception | None = None
        self.not_as_sent: str | None = None
        self.closed = self.pageable = False
        self.receiver = self

    async def stage(self, order: StageWeights) -> float:
        prefix = order.links[0].prefix
        self.stages.append(prefix)
        try:
            await self.gates.setdefault(prefix, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(prefix)
            raise
        if self.error is not None:
            raise self.error
        return 0.1

    async def read_back(self) -> str | None:
        return self.not_as_sent

    async def commit(self, version: int) -> float:
        if self.error is not None:
            raise self.error
        self.committed = manifest(version, self.canary)
        return 0.02

    @property
    def committed_version(self) -> int | None:
        return self.committed.version if self.committed else None

    @property
    def copy(self) -> WeightManifest | None:
        return self.committed

    async def send(self, order: SendWeights) -> int:
        self.sends.append(order.link.prefix)
        await self.gates.setdefault(order.link.prefix, asyncio.Event()).wait()
        if self.error is not None:
            raise self.error
        return 8

    def end_sends(self, prefix: str) -> None:
        self.ended.append(prefix)

    def close(self) -> None:
        self.closed = True

    def drop(self, prefix: str) -> None:
        self.dropped.append(prefix)


class ScriptedProver:
    """Answers with minus the version, once the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        self.error: Exception | None = None

    async def prove(self, manifest: WeightManifest) -> Proof:
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.put_nowait(manifest.version)
            raise
        if self.error is not None:
            raise self.error
        return Proof(logprobs=((-float(manifest.version),),), unmoved=True)


class ScriptedControl:
    """Does everything at once, and is held where the test says so."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.released.set()
        self.error: Exception | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    async def carry_out(self, order: ControlReplica, replica_id: str) -> ControlOutcome:
        return ControlOutcome(
            replica_id=replica_id,
            control_id=order.control_id,
            held=Hold.PAUSED,
            has_weights=True,
            refusal=None,
            error=None,
            seconds=0.1,
        )

    async def until_released(self) -> None:
        await self.released.wait()


class Scene:
    def __init__(self) -> None:
        self.bus, self.loader, self.prover = ScriptedBus(), ScriptedLoader(), ScriptedProver()
        self.control = ScriptedControl()
        self.member = BusMember(
            self.bus,  # type: ignore[arg-type]
            self.loader,  # type: ignore[arg-type]
            self.prover,  # type: ignore[arg-type]
            self.control,  # type: ignore[arg-type]
            self.hello,
        )

    def hello(self, committed: WeightManifest | None, copy: WeightManifest | None) -> ReplicaHello:
        return ReplicaHello(
            replica_id="r",
            address="http://r",
            committed_version=committed.version if committed else None,
            model="policy",
            max_model_len=16,
            pid=1,
            commit_timeout_s=1.0,
        )

    async def next(self, queue: "asyncio.Queue[Any]") -> Any:
        return await asyncio.wait_for(queue.get(), DEADLINE_S)


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_member, "_RETRY_S", 0.005)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    scene.member.start()
    await scene.next(scene.bus.hellos)
    yield scene
    await scene.member.stop()
    assert scene.bus.left == ["r"]


def manifest(version: int, canary: Sequences = ()) -> WeightManifest:
    return WeightManifest(
        version=version, train_step=0, tensors=(), buckets=(), digests=((),), canary=canary
    )


def stage(version: int, prefix: str) -> StageWeights:
    link = Link(
        replica_id="r",
        trainer_rank=0,
        store_host="",
        store_port=0,
        prefix=prefix,
        timeout_s=1,
    )
    return StageWeights(manifest=manifest(version), links=(link,))


async def test_stage_and_commit_are_reported_with_what_the_bus_needs(scene: Scene) -> None:
    scene.loader.gates["e1/t0"] = asyncio.Event()
    scene.loader.gates["e1/t0"].set()
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    vote = await scene.next(scene.bus.reports)
    assert (vote.phase, vote.version, vote.prefix, vote.error) == (Phase.STAGE, 3, "e1/t0", None)
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    done = await scene.next(scene.bus.reports)
    assert (done.phase, done.version, done.error) == (Phase.COMMIT, 3, None)
    assert done.paused_s == pytest.approx(0.02)


async def test_a_load_from_pageable_memory_is_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: asyncio.Queue[str] = asyncio.Queue()

    def count(tags: dict[str, str]) -> None:
        if tags["order"] == Phase.COMMIT:
            counted.put_nowait(tags["result"])

    monkeypatch.setattr(RolloutMetrics, "orders", SimpleNamespace(inc=count))
    for pageable, expected in ((False, ["done"]), (True, ["done", "pageable"])):
        scene.loader.pageable = pageable
        scene.bus.orders.put_nowait(CommitWeights(version=3))
        assert [await scene.next(counted) for _ in expected] == expected


async def test_a_failure_is_reported_and_the_member_goes_on(scene: Scene) -> None:
    scene.loader.error = RuntimeError("peer closed")
    scene.loader.gates["e1/t0"] = asyncio.Event()
    scene.loader.gates["e1/t0"].set()
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    assert "peer closed" in (await scene.next(scene.bus.reports)).error
    scene.loader.error = None
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    assert (await scene.next(scene.bus.reports)).error is None


async def test_an_order_to_drop_links_ends_the_receiving_under_way(scene: Scene) -> None:
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    scene.bus.orders.put_nowait(DropLinks(replica_id="r", prefix="e1/"))
    scene.bus.orders.put_nowait(CommitWeights(version=2))
    await scene.next(scene.bus.reports)
    assert scene.loader.dropped == ["e1/"]
    assert scene.loader.cancelled == scene.loader.stages


async def test_the_same_order_twice_is_carried_out_once(scene: Scene) -> None:
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    scene.bus.orders.put_nowait(CommitWeights(version=2))
    for phase in (Phase.COMMIT, Phase.CANARY):
        assert (await scene.next(scene.bus.reports)).phase is phase
    assert len(scene.loader.stages) <= 1
    scene.loader.gates["e1/t0"].set()
    assert (await scene.next(scene.bus.reports)).phase is Phase.STAGE
    assert scene.loader.stages == ["e1/t0"]


async def test_a_bus_that_forgot_the_replica_is_told_what_it_serves(scene: Scene) -> None:
    scene.loader.committed = manifest(7)
    scene.bus.known = False
    assert (await scene.next(scene.bus.hellos)).committed_version == 7


async def test_an_absent_bus_is_tried_again_and_the_report_kept(scene: Scene) -> None:
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    scene.bus.orders.put_nowait(CommitWeights(version=2))
    for phase in (Phase.COMMIT, Phase.CANARY):
        assert (await scene.next(scene.bus.reports)).phase is phase
    scene.bus.away = True
    scene.loader.gates["e1/t0"].set()
    await asyncio.wait_for(scene.bus.refused.wait(), DEADLINE_S)
    scene.member.check()
    scene.bus.away = False
    assert (await scene.next(scene.bus.reports)).phase is Phase.STAGE


async def test_a_member_whose_task_ended_is_not_healthy() -> None:
    scene = Scene()
    scene.bus.register_replica = None  # type: ignore[method-assign, assignment]
    scene.member.start()
    await asyncio.wait(scene.member._tasks, timeout=DEADLINE_S, return_when="FIRST_COMPLETED")
    with pytest.raises(RuntimeError, match="bus poll ended"):
        scene.member.check()
    await scene.member.stop()


async def test_a_member_whose_engine_follows_no_orders_is_not_healthy(scene: Scene) -> None:
    scene.control.error = RuntimeError("half-way")
    with pytest.raises(RuntimeError, match="half-way"):
        scene.member.check()


async def test_every_commit_is_followed_by_its_proof(scene: Scene) -> None:
    scene.loader.canary = ((1, 2),)
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    assert (await scene.next(scene.bus.reports)).phase is Phase.COMMIT
    proof = await scene.next(scene.bus.reports)
    assert (proof.phase, proof.version, proof.error) == (Phase.CANARY, 3, None)
    assert (proof.canary_logprobs, proof.canary_unmoved) == (((-3.0,),), True)


async def test_weights_that_are_not_as_sent_are_reported_at_once_and_not_scored(
    scene: Scene,
) -> None:
    scene.loader.canary, scene.loader.not_as_sent = ((1, 2),), "a.weight and 0 others"
    scene.control.released.clear()
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    assert (await scene.next(scene.bus.reports)).phase is Phase.COMMIT
    proof = await scene.next(scene.bus.reports)
    assert (proof.phase, proof.not_as_sent) == (Phase.CANARY, "a.weight and 0 others")
    assert not scene.prover.entered.is_set()


async def test_an_engine_that_gives_no_proof_is_reported(scene: Scene) -> None:
    scene.loader.canary = ((1, 2),)
    scene.prover.error = TimeoutError("full")
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    assert (await scene.next(scene.bus.reports)).phase is Phase.COMMIT
    proof = await scene.next(scene.bus.reports)
    assert (proof.phase, proof.canary_logprobs) == (Phase.CANARY, None)
    assert "full" in proof.error


async def test_the_next_commit_ends_a_proof_that_still_waits(scene: Scene) -> None:
    scene.loader.canary = ((1, 2),)
    scene.prover.gate.clear()
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    assert (await scene.next(scene.bus.reports)).phase is Phase.COMMIT
    await asyncio.wait_for(scene.prover.entered.wait(), DEADLINE_S)
    scene.bus.orders.put_nowait(CommitWeights(version=4))
    assert await scene.next(scene.prover.ended) == 3
    scene.prover.gate.set()
    reports = [await scene.next(scene.bus.reports) for _ in range(2)]
    assert [(one.phase, one.version) for one in reports] == [(Phase.COMMIT, 4), (Phase.CANARY, 4)]


async def test_a_replica_with_a_copy_stands_in_for_a_trainer_rank(scene: Scene) -> None:
    link = replace(stage(3, "other/1/t0").links[0], replica_id="other")
    scene.loader.gates[link.prefix] = asyncio.Event()
    scene.loader.gates[link.prefix].set()
    scene.bus.orders.put_nowait(SendWeights(version=3, link=link))
    sent = await scene.next(scene.bus.reports)
    assert (sent.phase, sent.member_id, sent.replica_id) == (Phase.SEND, "r", "other")
    assert (sent.version, sent.prefix, sent.error, sent.sent_bytes) == (3, link.prefix, None, 8)


async def test_another_replicas_dropped_links_leave_what_is_staged_here(scene: Scene) -> None:
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))
    scene.bus.orders.put_nowait(DropLinks(replica_id="other", prefix="other/"))
    scene.bus.orders.put_nowait(stage(3, "e1/t0"))  # delivered again: changes nothing
    scene.bus.orders.put_nowait(CommitWeights(version=2))
    for phase in (Phase.COMMIT, Phase.CANARY):
        assert (await scene.next(scene.bus.reports)).phase is phase
    assert (scene.loader.ended, scene.loader.cancelled) == (["other/"], [])
    scene.loader.gates["e1/t0"].set()
    assert (await scene.next(scene.bus.reports)).phase is Phase.STAGE


async def test_what_became_of_an_operators_order_is_reported(scene: Scene) -> None:
    order = ControlReplica(control_id="7", action=ControlAction.PAUSE, level=None)
    scene.bus.orders.put_nowait(order)
    outcome = await scene.next(scene.bus.outcomes)
    assert (outcome.control_id, outcome.held) == ("7", Hold.PAUSED)


async def test_the_proof_of_a_commit_waits_for_the_operator_to_release_the_engine(
    scene: Scene,
) -> None:
    scene.control.released.clear()
    scene.loader.canary = ((1, 2),)
    scene.bus.orders.put_nowait(CommitWeights(version=3))
    assert (await scene.next(scene.bus.reports)).phase is Phase.COMMIT
    assert not scene.prover.entered.is_set()
    scene.control.released.set()
    assert (await scene.next(scene.bus.reports)).phase is Phase.CANARY
