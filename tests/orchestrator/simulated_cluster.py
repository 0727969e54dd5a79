"""A cluster in virtual time, with faults: everything that a run talks to but the run itself.

Peers outlive the orchestrator. `Line` is what stands between the two: when it is cut, as by
the death of the orchestrator, no call of the dead one arrives any more and no answer reaches
it, while the trainer goes on with what it was told.
"""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from services.orchestrator.rollout.limits import LimitReached, limited
from services.orchestrator.rollout.rollout import Arrived, RolloutFailed, RolloutRequest
from services.protocol.errors import NotReady
from services.protocol.reward.reward_service import Score, ScoreJob
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import (
    CheckpointReport,
    LedgerFrontier,
    RunStart,
    TrainerState,
    TrainReport,
)
from services.protocol.trajectory import PolicySpan, Trajectory
from services.side_by_side import running
from tests.orchestrator.fakes import FakeBus, FakeTrainer, score

_FOREVER_S = 1e9
_MOMENT_S = 1e-6
_BETWEEN_TOKENS_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How long things take, and how often they break.

    Attributes:
        answer_s: median time of an answer, virtual seconds.
        tail: sigma of the log-normal of that time; 0 makes all alike.
        score_s: mean time of a score, seconds, exponential.
        train_s: time of a train step, seconds.
        commit_s: longest time from a publish to a replica's commit, seconds.
        rollout_fails: chance that a rollout breaks in the middle.
        refused: chance that a rollout is refused for good.
        stuck: chance that a rollout never ends.
        ungraded: chance that an answer cannot be graded.
        reward_away: chance that the reward service does not answer a call.
        trainer_dies: chance that the trainer dies before, and after, a step.
        save_fails: chance that a checkpoint is not written.
        replica_lost_s: mean time between losses of a replica, seconds; None for never.
        killed_s: mean time between kills of the orchestrator, seconds; None for never.
        good: chance that an answer is right.
    """

    answer_s: float = 10.0
    tail: float = 0.5
    score_s: float = 1.0
    train_s: float = 5.0
    commit_s: float = 1.0
    rollout_fails: float = 0.0
    refused: float = 0.0
    stuck: float = 0.0
    ungraded: float = 0.0
    reward_away: float = 0.0
    trainer_dies: float = 0.0
    save_fails: float = 0.0
    replica_lost_s: float | None = None
    killed_s: float | None = None
    good: float = 0.5


class SimulatedBus(FakeBus):
    """Replicas commit after a random time, get lost, and come back with the newest version."""

    def __init__(self, replicas: int, weather: Weather, chance: random.Random) -> None:
        super().__init__(replicas)
        self._weather = weather
        self._chance = chance
        self._lost: set[str] = set()

    async def _commit(self, name: str, version: int, place: int) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, self._weather.commit_s))
        if name not in self._lost:
            self.committed[name] = max(version, self.committed[name] or 0)
            self.pushes += 1
            self._notify()

    async def lose_replicas(self) -> None:
        """Take one replica after another away for a while, until cancelled."""
        mean_s = self._weather.replica_lost_s
        while mean_s is not None:
            await asyncio.sleep(self._chance.expovariate(1 / mean_s))
            name = self._chance.choice(sorted(self.committed))
            self._lost.add(name)
            self.committed[name] = None
            self._notify()
            await asyncio.sleep(self._chance.expovariate(2 / mean_s))
            self._lost.discard(name)
            self.committed[name] = self.newest
            self._notify()


class SimulatedTrainer(FakeTrainer):
    """Does one thing at a time, whoever asked for it."""

    def __init__(self, bus: FakeBus, weather: Weather, chance: random.Random) -> None:
        super().__init__(bus)
        self.train_s = weather.train_s
        self._weather = weather
        self._chance = chance
        self._busy = asyncio.Lock()
        self.deaths = 0

    def death(self) -> NotReady:
        """See `FakeTrainer`."""
        self.deaths += 1
        return super().death()

    async def start_run(self, start: RunStart) -> TrainerState:
        """See `FakeTrainer`."""
        async with self._busy:
            return await super().start_run(start)

    async def train(self, batch: TrainBatch) -> TrainReport:
        """See `FakeTrainer`."""
        async with self._busy:
            for moment in (self.die_before, self.die_after):
                if self._chance.random() < self._weather.trainer_dies:
                    moment.add(batch.step)
            return await super().train(batch)

    async def save(
        self, run_id: str, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        """See `FakeTrainer`."""
        async with self._busy:
            if self._chance.random() < self._weather.save_fails:
                raise NotReady("a rank died in the middle of it")
            return await super().save(run_id, frontier, wait)


class SimulatedReward:
    """Scores after a random time; an answer that begins with `good` is right."""

    def __init__(self, weather: Weather, chance: random.Random) -> None:
        self._weather = weather
        self._chance = chance
        self.answered: dict[str, float] = {}

    async def sandboxes(self) -> int:
        """One is enough."""
        return 1

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """A score for each job, or `NotReady`."""
        if self._chance.random() < self._weather.reward_away:
            raise NotReady("restarting")
        if self._weather.score_s:
            await asyncio.sleep(self._chance.expovariate(1 / self._weather.score_s))
        return [self._score(job) for job in jobs]

    def _score(self, job: ScoreJob) -> Score:
        ungraded = self._chance.random() < self._weather.ungraded
        return score(job, None if ungraded else float(job.completion.startswith("good")))


Seconds = Callable[[RolloutRequest, int], float]


@dataclass
class SimulatedRouter:
    """Rolls out groups on the replicas of a bus; tokens depend on seed and version only."""

    bus: FakeBus
    weather: Weather
    chance: random.Random
    floors: dict[str, int] = field(default_factory=dict)
    """Versions that interrupted sessions wait for."""
    stops: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    """Set when a session is interrupted."""
    delivered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Response tokens that reached an orchestrator, by session."""

    async def __aenter__(self) -> "SimulatedRouter":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """See `Sampler`."""
        breaks = self._breaks(request)
        choices: list[asyncio.Task[tuple[int, Trajectory]]] = []
        try:
            async with limited(request.limits) as progressed:
                for i in range(request.n):
                    choices.append(asyncio.create_task(self._choice(request, i, progressed)))
                for count, done in enumerate(asyncio.as_completed(choices)):
                    index, trajectory = await done
                    if count == breaks:
                        raise RolloutFailed("connection", "the stream was cut")
                    self.delivered[request.session] += len(trajectory.response_token_ids)
                    arrived(index, trajectory)
        except LimitReached as limit:
            raise RolloutFailed(limit.reason, str(limit)) from None
        finally:
            for choice in choices:
                choice.cancel()
            await asyncio.gather(*choices, return_exceptions=True)

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """See `Sampler`."""
        self.floors[request.session] = min_version
        # Whatever is sampled now stops; what goes on waits for the next one.
        self.stops.pop(request.session, asyncio.Event()).set()
        return 0

    def _breaks(self, request: RolloutRequest) -> int | None:
        """At which answer the stream is cut; raises if the request is refused."""
        if self.chance.random() < self.weather.refused:
            raise RolloutFailed("http_400", "prompt too long", retryable=False)
        cut = self.chance.random() < self.weather.rollout_fails
        return self.chance.randrange(request.n) if cut else None

    async def _choice(
        self, request: RolloutRequest, index: int, progressed: Callable[[], None]
    ) -> tuple[int, Trajectory]:
        if self.chance.random() < self.weather.stuck:
            await asyncio.sleep(_FOREVER_S)
        async with running(_tokens(request, progressed), name="tokens"):
            return await self._answered(request, index)

    async def _answered(self, request: RolloutRequest, index: int) -> tuple[int, Trajectory]:
        seconds = self.weather.answer_s * self.chance.lognormvariate(0.0, self.weather.tail)
        longest_s = seconds / self.chance.randint(1, 3)
        served: list[tuple[int, str]] = []
        while seconds > _MOMENT_S or not served:
            version, name = await self._served(request, index)
            served.append((version, name))
            stopped = self.stops[request.session]
            began = asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), min(seconds, longest_s))
            seconds -= asyncio.get_running_loop().time() - began
        return index, answer(request, index, served, good=self.weather.good)

    async def _served(self, request: RolloutRequest, index: int) -> tuple[int, str]:
        """The version and the replica that go on with an answer, which keeps its tokens."""
        while True:
            name = await self._place(index)
            version = self.bus.committed[name]
            if version is not None and version >= self.floors.get(request.session, 0):
                return version, name
            await self.bus.watch(self.bus.revision, 1.0)

    async def _place(self, index: int) -> str:
        while not (leased := self.bus.leased()):
            await self.bus.watch(self.bus.revision, 1.0)
        return leased[index % len(leased)]


async def _tokens(request: RolloutRequest, progressed: Callable[[], None]) -> None:
    """Signs of a choice that is made, or waits for a replica."""
    while True:
        progressed()
        request.progressed()
        await asyncio.sleep(_BETWEEN_TOKENS_S)


def answer(
    request: RolloutRequest, index: int, served: list[tuple[int, str]], *, good: float
) -> Trajectory:
    """What these replicas, by version, say to this request: the same whenever it is asked."""
    told = (request.seed, request.messages, index, served[0][0])
    chance = random.Random(repr(told))
    count = len(served) + chance.randint(1, 20)
    bounds = [0, *range(1, len(served)), count]
    return Trajectory(
        prompt_token_ids=(1, 2, 3),
        response_token_ids=tuple(chance.randrange(1000) for _ in range(count)),
        behaviour_logprobs=tuple(-chance.random() for _ in range(count)),
        loss_mask=(1,) * count,
        spans=tuple(
            PolicySpan(version=version, start=start, end=end, replica_id=name)
            for (version, name), start, end in zip(served, bounds, bounds[1:], strict=False)
        ),
        finish_reason="stop",
        text="good" if chance.random() < good else "bad",
    )


class Line:
    """The way from one orchestrator to its peers."""

    def __init__(self) -> None:
        self._dead = False
        self._calls: set[asyncio.Task[Any]] = set()

    def cut(self) -> None:
        """From now on no call arrives."""
        self._dead = True

    def to(self, peer: Any) -> Any:
        """The peer at the other end."""
        return _Peer(self, peer)

    async def call(self, method: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """The answer; the call goes on when the caller is gone."""
        if self._dead:
            raise NotReady("the line is cut")
        call = asyncio.ensure_future(method(*args))
        self._calls.add(call)
        call.add_done_callback(self._over)
        return await asyncio.shield(call)

    def _over(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # a caller that died does not ask for it


class _Peer:
    """Calls every method over a line."""

    def __init__(self, line: Line, peer: Any) -> None:
        self._line = line
        self._peer = peer

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._peer, name)
        return lambda *args: self._line.call(method, *args)
