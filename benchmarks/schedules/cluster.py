"""A cluster for the scheduling benchmark, in virtual time: what a run talks to.

Decoding is memory-bound: each replica samples `slots` answers at a time, each at one token a
second, and further ones wait in order of arrival. The reward service has a pool of sandboxes
that serve in order of arrival. The trainer's devices are its own, as in Millrace.
"""

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from benchmarks.schedules.bus import Bus
from benchmarks.schedules.hardware import simulated
from benchmarks.schedules.rollouts import Rollouts
from millrace_tools.simulation.hardware import Groups, Hardware
from services.orchestrator.core.context import Peers
from services.protocol.reward.reward_service import Score, ScoreJob
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import CheckpointReport, RunStart, TrainerState, TrainReport
from tests.orchestrator.fakes import no_load, score


@dataclass(frozen=True, kw_only=True)
class Step:
    """One train step: when it ended, and the groups that it trained."""

    ended: float
    groups: tuple[int, ...]


class Reward:
    """Sandboxes that serve in order of arrival."""

    def __init__(self, hardware: Hardware, trace: Groups) -> None:
        self._trace = trace
        self._free_at = [0.0] * hardware.sandboxes

    async def sandboxes(self) -> int:
        """See `RewardService`."""
        return len(self._free_at)

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """See `RewardService`: the call returns when the slowest is graded."""
        now = asyncio.get_running_loop().time()
        done = max(self._grade(job, now) for job in jobs)
        if done > now:
            await asyncio.sleep(done - now)
        return self._scores(jobs)

    @simulated
    def _scores(self, jobs: list[ScoreJob]) -> list[Score]:
        return [score(job, float(job.completion.startswith("good"))) for job in jobs]

    @simulated
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
        groups = tuple(batch.group_ids.tolist())
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
            row_groups=1,
            parameters=1,
        )


class Cluster:
    """All of it, before anything has happened."""

    def __init__(
        self,
        hardware: Hardware,
        trace: Groups,
        rollouts: Callable[[Hardware, Groups, Bus], Rollouts] = Rollouts,
    ) -> None:
        self.hardware, self.bus = hardware, Bus(hardware)
        self.rollouts = rollouts(hardware, trace, self.bus)
        self.reward, self.trainer = Reward(hardware, trace), Trainer(hardware, self.bus)

    @property
    def peers(self) -> Peers:
        """The cluster as the orchestrator gets it."""
        return Peers(
            trainer=cast(Any, self.trainer),
            reward=self.reward,
            bus=cast(Any, self.bus),
            rollouts=lambda run, config, run_id: self.rollouts,
            load=no_load,
        )
