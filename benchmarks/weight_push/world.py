"""One weight bus, two trainer ranks and some replicas of one size, and the four ways to push."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import ray

from benchmarks.models import make_model
from benchmarks.random_batch import Shape, random_batch, run_start
from benchmarks.weight_push import actors
from services.peers import bus_peer
from services.protocol.trainer import RunStart
from services.protocol.weights.weight_bus import ReplicaState, WeightBus
from services.protocol.weights.weights import WeightManifest
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import TrainerConfig
from services.trainer.lead.group_progress import GroupProgress
from services.trainer.lead.rank_group import RankGroup
from services.trainer.rank.rank_messages import by_sequence
from services.weight_bus.app import WeightBusSupervisor
from services.weight_bus.config import WeightBusConfig

RANKS = 2
DEADLINE_S = 120.0
VOCABULARY = {3: 512, 150: 8192, 600: 8192}
SHAPES = {
    3: (128, 384, 3, 4, 2, 32),
    150: (512, 1536, 9, 8, 4, 64),
    600: (1024, 3072, 11, 16, 8, 64),
}
"""Sizes in MB of float32."""


@dataclass
class Push:
    """One delivery to all replicas, seconds.

    Attributes:
        started: when the trainer began to take the weights out, by the monotonic clock.
        ended: when the last replica served them.
        snapshot: until training could have gone on.
        staged: from then until the last replica held all bytes; ours only.
    """

    started: float
    ended: float
    snapshot: float
    staged: float | None = None

    @property
    def total(self) -> float:
        """From the weights on the ranks to all replicas serving them."""
        return self.ended - self.started


@dataclass
class World:
    """The parts that run while one size is measured."""

    group: RankGroup
    replicas: list[Any]
    keeper: WeightBusSupervisor
    folder: Path
    ranks: int
    bus: WeightBus = field(default_factory=bus_peer)
    version: int = -1
    seed: int = 0
    steps: int = 0

    @classmethod
    async def open(
        cls,
        size: int,
        replicas: int,
        folder: Path,
        *,
        positions: int = 4096,
        ranks: int = RANKS,
        **server: Any,
    ) -> Self:
        """Start everything and deliver the first version.

        Args:
            size: of `SHAPES`.
            replicas: how many.
            folder: of the model.
            positions: longest row that it takes.
            ranks: of the trainer.
            server: settings of the rollout servers other than these.
        """
        vocabulary = VOCABULARY[size]
        shape = SHAPES[size]
        model = str(make_model(folder, shape, vocabulary=vocabulary, positions=positions))
        # Every second version is sent whole and the others as changes: two ways, one bus.
        keeper = WeightBusSupervisor(WeightBusConfig(delta_anchor_every=2))
        trainer = TrainerConfig(model=model, world_size=ranks, dtype="float32")
        settings = {"max_model_len": 256, "max_num_seqs": 32, "kv_cache_gb": 0.25} | server
        config = RolloutServerConfig(
            model=model, replicas=replicas, dtype="float32", keep_copy=True, **settings
        )
        rank_class: Any = ray.remote(num_cpus=0)(actors.Rank)
        handles = [rank_class.remote(trainer, "bench", rank) for rank in range(ranks)]
        group = RankGroup("bench", handles, GroupProgress(trainer))
        replica_class: Any = ray.remote(num_cpus=0)(actors.Replica)
        made = [replica_class.remote() for _ in range(replicas)]
        place = handles[0].meet.remote()
        models = asyncio.gather(*(rank.join.remote(place) for rank in handles))
        starts = (one.start.remote(config, number) for number, one in enumerate(made))
        await asyncio.wait_for(asyncio.gather(*starts), DEADLINE_S)
        group.model = (await models)[0]
        world = cls(group=group, replicas=made, keeper=keeper, folder=folder, ranks=ranks)
        await world.call("start_run", world.run, 0)
        # Replicas without weights get them, and a lease once the canary is scored.
        world.version = 0
        await world.bus.publish(world._manifest(0, await world.call("snapshot", 0)))
        await world.prove()
        async with asyncio.timeout(DEADLINE_S):
            await world._follow(0)
        return world

    @property
    def run(self) -> RunStart:
        """The run that the ranks train."""
        return run_start(self.folder)

    async def close(self) -> None:
        """End the replicas in good order; the cluster ends the rest."""
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            await self.on_replicas("stop")

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return self.group.model.parameters * self.group.model.tensors[0].dtype.itemsize

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call every rank."""
        return await asyncio.wait_for(self.group.call(method, *args), DEADLINE_S)

    async def on_replicas(self, method: str, *args: Any) -> list[Any]:
        """Call every replica at once."""
        calls = [getattr(replica, method).remote(*args) for replica in self.replicas]
        return await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S)

    async def change(self, share: float) -> None:
        """New weights on the ranks: a random `share` of all elements moved."""
        self.seed += 1
        await self.call("do", actors.change, share, self.seed)

    async def ours(self) -> Push:
        """Snapshot, publish, and wait until every replica has committed; everything is sent."""
        return await self._publish(self.version + 1 + (self.version + 1) % 2)

    async def deltas(self) -> Push:
        """As `ours`, but only what changed since the version before is sent."""
        return await self._publish(self.version + 1 + self.version % 2)

    async def driver(self) -> Push:
        """Gather on rank 0, fetch into the driver, put into the object store, load."""
        started = time.monotonic()
        arrays = (await self.call("do", actors.gather))[0]
        taken = time.monotonic()
        await self.on_replicas("load", actors.load_arrays, ray.put(arrays))
        return Push(started=started, ended=time.monotonic(), snapshot=taken - started)

    async def checkpoint(self) -> Push:
        """Gather on rank 0, write one safetensors file into the page cache, load it."""
        started = time.monotonic()
        await self.call("do", actors.write, str(self.folder))
        written = time.monotonic()
        await self.on_replicas("load", actors.load_checkpoint, str(self.folder))
        return Push(started=started, ended=time.monotonic(), snapshot=written - started)

    async def worst_difference(self) -> float:
        """Largest difference of a logprob on any replica from the trainer's, nats."""
        sequence = [(7 * position) % 300 + 3 for position in range(24)]
        (expected,) = by_sequence(await self.call("logprobs", [sequence]))
        served = await self.on_replicas("logprobs", sequence)
        return max(abs(a - b) for one in served for a, b in zip(one, expected, strict=True))

    async def delta_share(self) -> float:
        """Bytes of the newest version as changes, beside its whole size."""
        return sum(await self.call("do", actors.delta_bytes, self.version)) / self.nbytes

    async def train_step(self, batch_tokens: int) -> tuple[Any, float, WeightManifest]:
        """One train step, not published: its report, CPU seconds of rank 0, the manifest."""
        self.steps += 1
        version = self.version + 1 + (self.version + 1) % 2
        shape = Shape(groups=1, size=8, prompt=4, response=batch_tokens // 8)
        batch = random_batch(self.steps, shape, vocabulary=300)
        plan = self.group.model.plan(batch, self.run)
        parts = [plan.part(rank) for rank in range(self.ranks)]
        answers = await self.call("do", actors.timed_train, parts, version)
        self.version = version
        steps = [step for step, _ in answers]
        return steps[0], answers[0][1], self._manifest(version, [step.digests for step in steps])

    async def deliver(self, manifest: WeightManifest) -> tuple[float, float]:
        """Publish a version that the ranks hold; when all was staged, and when committed."""
        await self.bus.publish(manifest)
        async with asyncio.timeout(DEADLINE_S):
            return await self._follow(manifest.version)

    async def prove(self) -> float:
        """Score the canary of the newest version, as the trainer does when it is delivered.

        Returns:
            Seconds of the forward passes on the ranks.
        """
        sequences = [list(one) for one in self.group.model.canary]
        began = time.monotonic()
        scored = by_sequence(await self.call("logprobs", sequences))
        seconds = time.monotonic() - began
        await self.bus.publish_canary(self.version, tuple(map(tuple, scored)))
        return seconds

    async def _publish(self, version: int) -> Push:
        self.version = version
        started = time.monotonic()
        digests = await self.call("snapshot", version)
        taken = time.monotonic()
        staged, committed = await self.deliver(self._manifest(version, digests))
        await self.prove()
        return Push(
            started=started, ended=committed, snapshot=taken - started, staged=staged - taken
        )

    async def _follow(self, version: int) -> tuple[float, float]:
        staged: dict[str, float] = {}
        committed: dict[str, float] = {}
        revision = -1
        while len(committed) < len(self.replicas):
            table = await self.bus.watch(revision, 1.0)
            now, revision = time.monotonic(), table.revision
            for member in table.members:
                done = member.committed_version == version
                if member.last_error:
                    raise RuntimeError(f"{member.replica_id}: {member.last_error}")
                if done or member.state is ReplicaState.COMMITTING:
                    staged.setdefault(member.replica_id, now)
                if done:
                    committed.setdefault(member.replica_id, now)
        return max(staged.values()), max(committed.values())

    def _manifest(self, version: int, digests: list[Any]) -> WeightManifest:
        return self.group.model.manifest(version, self.steps, digests)
