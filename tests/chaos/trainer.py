"""The real trainer service and rank group over rank processes instead of Ray actors."""

import asyncio
import inspect
import random
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayActorError

from services.protocol.train_batch import ScoredTrajectory, TrainBatch, TrainGroup
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.config import TrainerConfig
from tests.batches import GroupBatch
from tests.chaos import calls

_POLL_S = 0.02
VOCABULARY = 272


class RankHandle:
    """Stands for the Ray handle of one rank: `handle.method.remote(*args)` is awaitable."""

    def __init__(self, path: str, start: Callable[[], Any], may_start: asyncio.Event) -> None:
        self.process: Any = None
        self._path, self._start, self._may_start = path, start, may_start
        self._dead = False
        self._up = asyncio.create_task(self._come_up())

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(
            remote=lambda *args: asyncio.ensure_future(self._call(method, *args))
        )

    def kill(self) -> None:
        self._dead = True
        self._up.cancel()
        if self.process is not None:
            self.process.kill()

    async def _come_up(self) -> None:
        await self._may_start.wait()
        self.process = self._start()

    async def _call(self, method: str, *args: Any) -> Any:
        # Ray resolves references among the arguments, too.
        given = [await one if inspect.isawaitable(one) else one for one in args]
        await asyncio.wait({self._up})
        while not self._dead and self.process.is_alive():
            try:
                return await calls.call(self._path, method, *given)
            except calls.Gone:
                break
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_POLL_S)
        raise RayActorError


class RankProcesses:
    """What `RankGroup` uses of Ray.

    Attributes:
        ranks: handles of the newest group, in rank order.
        may_start: while it is clear there is no room for ranks in the cluster.
    """

    def __init__(self, folder: str, bus: str, weights: str, start: Callable[..., Any]) -> None:
        self.ranks: list[RankHandle] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self._folder, self._bus, self._weights, self._start = folder, bus, weights, start

    @property
    def ray(self) -> Any:
        actor = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._new_rank))
        return SimpleNamespace(
            remote=lambda _: actor, put=lambda value: value, kill=lambda handle: handle.kill()
        )

    async def release(self) -> None:
        """Let the sends of the newest group's living ranks go on."""
        for rank in self.ranks:
            with suppress(RayActorError):
                await rank.release.remote()

    def _new_rank(self, config: TrainerConfig, group: str, rank: int, _: None) -> RankHandle:
        path = f"{self._folder}/{group}-{rank}"
        args = path, self._bus, self._weights, config, group, rank
        handle = RankHandle(path, lambda: self._start("run_rank", *args), self.may_start)
        self.ranks = [*self.ranks[:rank], handle]
        return handle


def batch(run_id: str, step: int) -> TrainBatch:
    """Random trajectories with random rewards: any step will do, as long as it moves weights."""
    draw = random.Random(step)
    groups = tuple(
        TrainGroup(group_id=index, trajectories=tuple(_scored(draw) for _ in range(4)))
        for index in range(2)
    )
    return GroupBatch(run_id=run_id, step=step, groups=groups).built


def _scored(draw: random.Random) -> ScoredTrajectory:
    tokens = tuple(draw.randrange(2, VOCABULARY) for _ in range(8))
    trajectory = Trajectory(
        prompt_token_ids=(40, 50),
        response_token_ids=tokens,
        behaviour_logprobs=tuple(-5.6 for _ in tokens),
        loss_mask=tuple(1 for _ in tokens),
        spans=(PolicySpan(version=0, start=0, end=len(tokens), replica_id="r"),),
        finish_reason="stop",
        text="",
    )
    return ScoredTrajectory(trajectory=trajectory, reward=draw.random())
