"""A bus without Ray or torch, and members whose every move the test decides."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from services.protocol.weights.hello import ReplicaHello, TrainerHello
from services.protocol.weights.weight_bus import MemberTable, Order, Phase, Report, StageWeights
from services.protocol.weights.weights import Dtype, TensorSpec, WeightManifest
from services.weight_bus.bus import Bus
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.node_relays import NO_RELAYS

DEADLINE_S = 300.0
SCORES = ((-1.0,),)
"""What the trainer says of the canary."""

OrderT = TypeVar("OrderT", bound=Order)


class Clock:
    """Time that passes only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Endpoint:
    """One member: takes its orders and reports what the test tells it to."""

    def __init__(self, bus: Bus, member_id: str) -> None:
        self.bus, self.id = bus, member_id
        self.acknowledged = 0
        self.orders: list[Order] = []

    async def receive(self, kind: type[OrderT]) -> OrderT:
        """The next order, which must be of this kind."""
        order = await self._next()
        assert isinstance(order, kind), order
        return order

    async def next_of(self, kind: type[OrderT]) -> OrderT:
        """The next order of this kind, whatever comes before it."""
        while not isinstance(order := await self._next(), kind):
            pass
        return order

    async def _next(self) -> Order:
        async with asyncio.timeout(DEADLINE_S):
            while not self.orders:
                answer = await self.bus.next_orders(self.id, self.acknowledged, 1.0)
                assert answer.known
                self.orders += answer.orders
                self.acknowledged = answer.last
        return self.orders.pop(0)

    async def report(
        self, phase: Phase, version: int, *, prefix: str = "", error: str | None = None, **more: Any
    ) -> None:
        replica = more.pop("replica_id", self.id)
        await self.bus.report(
            Report(
                member_id=self.id,
                replica_id=replica,
                phase=phase,
                version=version,
                error=error,
                seconds=0.01,
                prefix=prefix,
                **more,
            )
        )


class Replica(Endpoint):
    """A scripted rollout server."""

    commit_timeout_s = 0.0
    _has_canary = False
    keeps_copy = False
    memory_domain = ""
    has_gpu = False
    node_id = ""
    interfaces: tuple[str, ...] = ()

    async def register(self, committed_version: int | None = None) -> None:
        held = manifest(committed_version) if committed_version is not None else None
        introduced = replace(
            hello(self.id, committed_version, self.commit_timeout_s),
            keeps_copy=self.keeps_copy,
            copy=held if self.keeps_copy else None,
            memory_domain=self.memory_domain,
            has_gpu=self.has_gpu,
            node_id=self.node_id,
            interfaces=self.interfaces,
        )
        await self.bus.register_replica(introduced)

    async def vote(self, order: StageWeights, error: str | None = None) -> None:
        self._has_canary = bool(order.manifest.canary)
        await self.report(
            Phase.STAGE, order.manifest.version, prefix=order.links[0].prefix, error=error
        )

    async def proved(self, version: int, gap: float | None, error: str | None = None) -> None:
        """Answer the canary, `gap` nats off what the trainer says; None: no answer."""
        answer = None if gap is None else ((SCORES[0][0] + gap,),)
        await self.report(Phase.CANARY, version, error=error, canary_logprobs=answer)

    async def committed(self, version: int, error: str | None = None) -> None:
        await self.report(Phase.COMMIT, version, error=error, paused_s=0.01)
        if error is None and not self._has_canary:
            await self.report(Phase.CANARY, version)  # read back, and all is as it was sent


class World:
    """A bus, its clock, a trainer of two ranks and what the table says."""

    def __init__(self, config: WeightBusConfig) -> None:
        self.clock = Clock()
        self.config = config
        self.starter, self.forgotten = NO_RELAYS, list[str]()
        self.bus = self._bus()
        self.ranks = [Endpoint(self.bus, f"a/{rank}") for rank in range(2)]

    def _bus(self) -> Bus:
        async def store() -> tuple[str, int]:
            return await self.store()

        return Bus(
            self.config,
            store=store,
            forget_keys=self.forgotten.append,
            relays=self.starter,
            clock=self.clock,
        )

    async def store(self) -> tuple[str, int]:
        return "127.0.0.1", 29000

    async def restart_bus(self) -> None:
        await self.bus.close()
        self.bus = self._bus()

    async def register_trainer(
        self,
        group: str = "a",
        *,
        memory_domain: str = "",
        has_gpu: bool = False,
        interfaces: tuple[str, ...] = (),
    ) -> list[Endpoint]:
        self.ranks = [Endpoint(self.bus, f"{group}/{rank}") for rank in range(2)]
        for rank, endpoint in enumerate(self.ranks):
            await self.bus.register_trainer(
                TrainerHello(
                    member_id=endpoint.id,
                    group=group,
                    rank=rank,
                    world_size=2,
                    memory_domain=memory_domain,
                    has_gpu=has_gpu,
                    interfaces=interfaces,
                )
            )
        return self.ranks

    async def replica(
        self,
        name: str,
        committed_version: int | None = None,
        commit_timeout_s: float = 0.0,
        *,
        keeps_copy: bool = False,
        memory_domain: str = "",
        has_gpu: bool = False,
        node_id: str = "",
        interfaces: tuple[str, ...] = (),
    ) -> Replica:
        endpoint = Replica(self.bus, name)
        endpoint.node_id, endpoint.interfaces = node_id, interfaces
        endpoint.memory_domain, endpoint.has_gpu = memory_domain, has_gpu
        endpoint.keeps_copy = keeps_copy
        endpoint.commit_timeout_s = commit_timeout_s
        await endpoint.register(committed_version)
        return endpoint

    async def table(self) -> MemberTable:
        return await self.bus.watch(-1, 0.0)

    async def until(self, condition: Callable[[MemberTable], bool]) -> MemberTable:
        async with asyncio.timeout(DEADLINE_S):
            table = await self.table()
            while not condition(table):
                table = await self.bus.watch(table.revision, DEADLINE_S)
        return table


def hello(
    replica_id: str, committed_version: int | None = None, commit_timeout_s: float = 0.0
) -> ReplicaHello:
    return ReplicaHello(
        replica_id=replica_id,
        address=f"http://{replica_id}",
        committed_version=committed_version,
        model="policy",
        max_model_len=128,
        pid=1,
        commit_timeout_s=commit_timeout_s,
    )


def manifest(version: int, *, canary: bool = False) -> WeightManifest:
    spec = TensorSpec(name="w.weight", dtype=Dtype.FLOAT32, shape=(4,), shard_numels=(2, 2))
    return WeightManifest(
        version=version,
        train_step=version,
        tensors=(spec,),
        buckets=((0, 1),),
        digests=(("0" * 64,), ("1" * 64,)),
        canary=((1, 2),) if canary else (),
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    config = WeightBusConfig(
        retry_s=0.001, retry_max_s=0.002, stage_timeout_s=DEADLINE_S, commit_margin_s=DEADLINE_S
    )
    world = World(config)
    yield world
    await world.bus.close()


@pytest.fixture
async def impatient_world() -> AsyncIterator[World]:
    config = WeightBusConfig(
        retry_s=0.001, retry_max_s=0.002, stage_timeout_s=0.02, commit_margin_s=0.02
    )
    world = World(config)
    yield world
    await world.bus.close()
