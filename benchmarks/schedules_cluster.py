"""A cluster for the scheduling benchmark, in virtual time: what a run talks to.

Decoding is memory-bound: each replica samples `slots` answers at a time, each at one token a
second, and further ones wait in order of arrival. The reward service has a pool of sandboxes
that serve in order of arrival. The trainer's devices are its own, as in Millrace.
"""

import asyncio
import heapq
import math
import random
from bisect import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.orchestrator.rollout import Arrived, RolloutRequest
from services.protocol.reward_service import Score, ScoreJob
from services.protocol.trainer import (
    CheckpointReport,
    RunStart,
    TrainBatch,
    TrainerState,
    TrainReport,
)
from services.protocol.trajectory import PolicySpan, Trajectory
from services.protocol.weight_bus import Member, MemberTable, ReplicaState
from tests.orchestrator.fakes import score

MEAN_TOKENS = 60
LONGEST = 11 * MEAN_TOKENS
"""As 32,768 tokens are to a mean of 3,000."""
_WAVES = 8
_TOKENS = tuple(range(LONGEST + 1))
_LOGPROBS = (-0.5,) * (LONGEST + 1)
_MASK = (1,) * (LONGEST + 1)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What there is.

    Attributes:
        replicas: rollout servers.
        slots: answers that each samples at a time.
        sandboxes: answers graded at a time.
        score_s: mean time to grade one, seconds.
        train_s: time of a train step, seconds.
        push_s: time from a train step's end until every replica serves it, seconds.
    """

    replicas: int
    slots: int
    sandboxes: int
    score_s: float
    train_s: float
    push_s: float

    @property
    def sequences(self) -> int:
        """Answers sampled at a time, on all replicas."""
        return self.replicas * self.slots


@dataclass(frozen=True, kw_only=True)
class Work:
    """One sample group: tokens of each answer, and seconds to grade each."""

    tokens: tuple[int, ...]
    score_s: tuple[float, ...]


class Trace:
    """How long each answer is and how long its grading takes: the same for every schedule."""

    def __init__(self, *, sigma: float, score_s: float, group_size: int, seed: int) -> None:
        self._sigma = sigma
        self._score_s = score_s
        self._size = group_size
        self._seed = seed
        self._groups: dict[int, Work] = {}

    def group(self, group_id: int) -> Work:
        """What the group of this id asks for."""
        if group_id not in self._groups:
            chance = random.Random(f"{self._seed}:{group_id}")
            mu = math.log(MEAN_TOKENS) - self._sigma**2 / 2
            drawn = (chance.lognormvariate(mu, self._sigma) for _ in range(self._size))
            self._groups[group_id] = Work(
                tokens=tuple(min(LONGEST, max(2, round(tokens))) for tokens in drawn),
                score_s=tuple(self._score_s * chance.uniform(0.5, 1.5) for _ in range(self._size)),
            )
        return self._groups[group_id]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One train step: when it ended, and the groups that it trained."""

    ended: float
    groups: tuple[int, ...]


class Bus:
    """All replicas commit a version in a few waves until `push_s` after it was published."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._committed = [0] * _WAVES
        self._revision = 1
        self._waiters: list[asyncio.Future[None]] = []
        self.newest: int | None = None
        self.commits: list[tuple[float, int]] = []

    def publish(self) -> int:
        """A new version; returns it."""
        self.newest = (self.newest or 0) + 1
        loop, version = asyncio.get_running_loop(), self.newest
        for wave in range(_WAVES):
            delay = self._hardware.push_s * (wave + 1) / _WAVES
            loop.call_later(delay, self._commit, wave, version)
        self._changed()
        return version

    def _commit(self, wave: int, version: int) -> None:
        self._committed[wave] = max(version, self._committed[wave])
        if wave == 0:  # spans are labelled as on the replicas that come first
            self.commits.append((asyncio.get_running_loop().time(), version))
        self._changed()

    def _changed(self) -> None:
        self._revision += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """See `WeightBus`."""
        if revision >= self._revision:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await asyncio.wait({waiter}, timeout=wait_s)
        return MemberTable(
            bus_id="b",
            revision=self._revision,
            newest_version=self.newest,
            lease_s=10.0,
            members=tuple(self._member(i) for i in range(self._hardware.replicas)),
            trainer_ready=True,
            pushes=0,
        )

    def _member(self, number: int) -> Member:
        version = self._committed[number % _WAVES] or None
        return Member(
            replica_id=f"replica-{number}",
            address="http://127.0.0.1:1",
            state=ReplicaState.LIVE if version else ReplicaState.JOINING,
            committed_version=version,
            leased=version is not None,
            model="tiny",
            max_model_len=4096,
            pid=1,
        )

    async def bound_lag(self, max_lag: int | None) -> None:
        """See `WeightBus`; replicas here are never behind for long."""


@dataclass
class Rollouts:
    """The router and its replicas; a `Sampler` in which an answer costs two timers, no task."""

    hardware: Hardware
    trace: Trace
    bus: Bus
    generated: int = 0
    _busy: int = 0
    _queue: deque[Callable[[], None]] = field(default_factory=deque)

    async def __aenter__(self) -> "Rollouts":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """See `Sampler`."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        evaluation = request.n == 1
        group_id = 0 if evaluation else int(request.session.split("-")[-2])
        tokens = self.trace.group(group_id).tokens[: request.n]
        left = request.n

        def begin(index: int) -> None:
            if over.done():
                return self._free()
            loop.call_later(tokens[index], end, index, loop.time())
            return None

        def end(index: int, began: float) -> None:
            nonlocal left
            self._free()
            if over.done():
                return
            self.generated += tokens[index]
            arrived(index, self._answer(index, began, tokens[index]))
            left -= 1
            if not left:
                over.set_result(None)

        for index in range(request.n):
            self._start(begin, index)
        await over

    def _start(self, begin: Callable[[int], None], index: int) -> None:
        if self._busy < self.hardware.sequences:
            self._busy += 1
            begin(index)
        else:
            self._queue.append(lambda: begin(index))

    def _free(self) -> None:
        self._busy -= 1
        if self._queue:
            self._busy += 1
            self._queue.popleft()()

    def _answer(self, index: int, began: float, tokens: int) -> Trajectory:
        commits = self.bus.commits
        first = max(0, bisect(commits, (began, math.inf)) - 1)
        bounds = [0, *(min(tokens, int(at - began)) for at, _ in commits[first + 1 :]), tokens]
        spans = [
            PolicySpan(version=version, start=start, end=end, replica_id="replica")
            for (_, version), start, end in zip(commits[first:], bounds, bounds[1:], strict=False)
            if end > start
        ]
        return Trajectory(
            prompt_token_ids=(1, 2, 3),
            response_token_ids=_TOKENS[:tokens],
            behaviour_logprobs=_LOGPROBS[:tokens],
            loss_mask=_MASK[:tokens],
            spans=tuple(spans),
            finish_reason="stop",
            text="good" if index % 2 else "bad",
        )


class Reward:
    """Sandboxes that serve in order of arrival."""

    def __init__(self, hardware: Hardware, trace: Trace) -> None:
        self._trace = trace
        self._free_at = [0.0] * hardware.sandboxes

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """See `RewardService`: the call returns when the slowest is graded."""
        now = asyncio.get_running_loop().time()
        done = max(self._grade(job, now) for job in jobs)
        if done > now:
            await asyncio.sleep(done - now)
        return [score(job, float(job.completion.startswith("good"))) for job in jobs]

    def _grade(self, job: ScoreJob, now: float) -> float:
        _, group, *rest = job.job_id.split("/")
        seconds = 0.0
        if group.isdigit():  # the others are of evaluations
            seconds = self._trace.group(int(group)).score_s[int(rest[-1])]
        done = max(now, self._free_at[0]) + seconds
        heapq.heapreplace(self._free_at, done)
        return done


class Trainer:
    """Takes `train_s` for each step and publishes at its end."""

    def __init__(self, hardware: Hardware, bus: Bus) -> None:
        self._hardware = hardware
        self._bus = bus
        self.steps: list[Step] = []

    async def start_run(self, start: RunStart) -> TrainerState:
        """See `Trainer`."""
        self._bus.publish()
        return await self.state()

    async def train(self, batch: TrainBatch) -> TrainReport:
        """See `Trainer`."""
        await asyncio.sleep(self._hardware.train_s)
        groups = tuple(group.group_id for group in batch.groups)
        self.steps.append(Step(ended=asyncio.get_running_loop().time(), groups=groups))
        return TrainReport(
            step=batch.step,
            policy_version=self._bus.publish(),
            tokens=1,
            metrics={},
            seconds={},
            checkpoint=CheckpointReport(saved_step=0),
        )

    async def save(self, run_id: str, *_: Any) -> CheckpointReport:
        """See `Trainer`."""
        return CheckpointReport(saved_step=len(self.steps))

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """Nobody asks."""
        raise NotImplementedError

    async def state(self) -> TrainerState:
        """See `Trainer`."""
        return TrainerState(
            ready=True,
            run_id="r",
            step=len(self.steps),
            policy_version=self._bus.newest,
            world_size=1,
            parameters=1,
        )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """All of it."""

    bus: Bus
    rollouts: Rollouts
    reward: Reward
    trainer: Trainer


def cluster(hardware: Hardware, trace: Trace) -> Cluster:
    """A cluster on which nothing has happened."""
    bus = Bus(hardware)
    rollouts = Rollouts(hardware, trace, bus)
    return Cluster(
        bus=bus, rollouts=rollouts, reward=Reward(hardware, trace), trainer=Trainer(hardware, bus)
    )


def unused(*_: Any) -> None:
    """Stands in for what costs time here and shows nothing, such as drawing."""
