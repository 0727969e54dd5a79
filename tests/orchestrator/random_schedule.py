"""A run under a random schedule in random weather, lived to its end in virtual time."""

import asyncio
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pydantic import ValidationError

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.context import Peers
from services.orchestrator.lifecycle.runs import Runs
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState, RunStatus
from services.protocol.run.schedule import SCHEDULE_PRESETS, ScheduleConfig
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import RunStart, TrainerState, TrainReport
from tests.batches import GroupBatch, opened
from tests.orchestrator.fakes import write_tasks
from tests.orchestrator.plain_schedule import CheckedSchedule
from tests.orchestrator.simulated_cluster import (
    Line,
    SimulatedBus,
    SimulatedReward,
    SimulatedRouter,
    SimulatedTrainer,
    Weather,
)
from tests.orchestrator.virtual_clock import run_virtually
from tests.orchestrator.witness import Witness

_KILLS = 4
_SETTINGS = {
    "backoff_s": 0.1,
    "score_timeout_s": 60.0,
    "trainer_timeout_s": 600.0,
    "replicas_timeout_s": 2000.0,
    "recoveries_in_row": 1000,
    "failures_in_row": 1000,
    "no_signal_batches": 1000,
    "sample_trajectories": 0,
}


@dataclass(frozen=True, kw_only=True)
class RandomSchedule:
    """One draw: a point in the scheduling space, a cluster, and what goes wrong in it."""

    seed: int
    schedule: dict[str, Any]
    run: dict[str, Any]
    orchestrator: dict[str, Any]
    replicas: int
    weather: Weather


def draw(seed: int) -> RandomSchedule:
    """The schedule of this number: always the same."""
    chance = random.Random(f"schedule {seed}")
    schedule = _point(chance)
    while not _possible(schedule):
        schedule = _point(chance)
    steps = chance.randint(2, 6)
    return RandomSchedule(
        seed=seed,
        schedule=schedule | {"adaptive": random.Random(f"adaptive {seed}").random() < 0.3},
        run={
            "seed": seed,
            "steps": steps,
            "batch_groups": chance.randint(1, 4),
            "group_size": chance.randint(2, 4),
            # Half of them have no limit in all: the draw stays that of the seed.
            **_limits(chance.choice([60.0, 600.0])),
            "checkpoint": {"every": chance.randint(1, 4)},
            "evaluation": {"tasks": 1, "every": chance.choice([0, 0, 2 % steps])},
        },
        orchestrator={
            "rollout_retries": chance.randint(0, 2),
            "score_batch": chance.choice([1, 4, 16]),
            "score_concurrency": chance.randint(1, 4),
        },
        replicas=chance.randint(1, 4),
        weather=_weather(chance),
    )


def _limits(seconds: float) -> dict[str, float]:
    if seconds > 60.0:
        return {"rollout_progress_timeout_s": seconds}
    return {"rollout_timeout_s": seconds}


def _point(chance: random.Random) -> dict[str, Any]:
    """A preset, and some of its parameters changed."""
    staleness = chance.randint(0, 4)
    parameters: dict[str, Any] = {
        "max_staleness": staleness,
        "batches_in_flight": chance.randint(1, staleness + 1),
        "oversample": chance.choice([0.25, 0.5, 1.0]),
        "unfinished": chance.choice(["wait", "interrupt", "continue"]),
        "on_stale": chance.choice(["wait", "withhold", "drop", "mask"]),
        "batch_barrier": True,
    }
    some = chance.choice([0.0, 0.2, 0.6])
    chosen = {name: value for name, value in parameters.items() if chance.random() < some}
    preset = chance.choice(sorted(SCHEDULE_PRESETS))
    return {"preset": preset, "dynamic_sampling": chance.random() < 0.3, **chosen}


def _possible(schedule: dict[str, Any]) -> bool:
    try:
        ScheduleConfig.model_validate(schedule)
    except ValidationError:
        return False
    return True


def _weather(chance: random.Random) -> Weather:
    """Each kind of fault is absent in about half of the draws."""

    def sometimes(most: float) -> float:
        return chance.uniform(0.0, most) if chance.random() < 0.5 else 0.0

    return Weather(
        answer_s=chance.choice([1.0, 10.0, 30.0]),
        tail=chance.choice([0.0, 0.3, 0.9, 1.5]),
        score_s=chance.choice([0.0, 1.0, 20.0]),
        train_s=chance.choice([0.0, 1.0, 20.0]),
        commit_s=chance.choice([0.0, 1.0, 10.0]),
        rollout_fails=sometimes(0.3),
        refused=sometimes(0.05),
        stuck=sometimes(0.03),
        ungraded=sometimes(0.3),
        reward_away=sometimes(0.3),
        trainer_dies=sometimes(0.15),
        save_fails=sometimes(0.3),
        replica_lost_s=chance.choice([None, None, 30.0, 200.0]),
        killed_s=chance.choice([None, None, 20.0, 100.0]),
        good=chance.choice([0.5, 0.5, 0.8]),
    )


class WitnessedTrainer(SimulatedTrainer):
    """Keeps what its weights were made of.

    Attributes:
        lineage: the batch of each step that the weights it holds have taken.
    """

    def __init__(self, *args: Any, witness: Witness) -> None:
        super().__init__(*args)
        self._witness = witness
        self.lineage: list[GroupBatch] = []

    async def start_run(self, start: RunStart) -> TrainerState:
        """See `SimulatedTrainer`."""
        state = await super().start_run(start)
        del self.lineage[state.step :]
        return state

    async def train(self, batch: TrainBatch) -> TrainReport:
        """See `SimulatedTrainer`."""
        assert self.version is not None
        self._witness.batch(opened(batch), self.version)
        before = len(self.batches)
        try:
            return await super().train(batch)
        finally:
            self.lineage += [batch for _, batch in self.batches[before:]]


class Life:
    """One run, from its first start to its end, however often its orchestrator is killed.

    Attributes:
        kills: of the orchestrator, so far.
        deaths: of the trainer.
        trainer: that it trains with.
        ended_at: when the run was over, virtual seconds.
    """

    def __init__(self, plan: RandomSchedule, folder: Path) -> None:
        self._plan = plan
        self._config = RunConfig.model_validate(
            {
                "name": "random",
                "task_file": str(write_tasks(folder / "tasks.jsonl", train=7, heldout=1)),
                "run_root": str(folder / "runs"),
                "model": "tiny",
                "schedule": plan.schedule,
                **plan.run,
            }
        )
        self.witness = Witness(self._config)
        self._chance = random.Random(f"weather {plan.seed}")
        self._loads = random.Random(f"loads {plan.seed}")
        weather = plan.weather
        self._bus = SimulatedBus(plan.replicas, weather, self._chance)
        self.trainer = WitnessedTrainer(self._bus, weather, self._chance, witness=self.witness)
        self._reward = SimulatedReward(weather, self._chance)
        self._router = SimulatedRouter(self._bus, weather, self._chance)
        self.kills = self.deaths = 0
        self.ended_at = 0.0
        self._killed = True

    async def _load(self, config: OrchestratorConfig) -> RouterLoad:
        """Full or not, as it comes; asked for by adaptive schedules only."""
        return RouterLoad(
            replicas=self._plan.replicas,
            full=self._loads.choice([0, self._plan.replicas]),
            in_flight=0,
            waiting=self._loads.choice([0, 0, 1]),
            queued=0.0,
            kv_usage=self._loads.choice([None, self._loads.random()]),
            max_choices=256,
        )

    async def live(self) -> RunStatus:
        """Live it; the last status."""
        losses = asyncio.create_task(self._bus.lose_replicas())
        try:
            with (
                mock.patch("services.orchestrator.lifecycle.run.Ledger", self.witness.ledger),
                mock.patch("services.orchestrator.lifecycle.run.Schedule", CheckedSchedule),
            ):
                status = await self._until_killed(None)
                while self._killed:
                    status = await self._until_killed(status.run_id)
        finally:
            losses.cancel()
        self.ended_at = asyncio.get_running_loop().time()
        self.deaths = self.trainer.deaths
        self._judge(status)
        return status

    async def _until_killed(self, resume: str | None) -> RunStatus:
        """One process: its last status, as it ended or as it was killed."""
        line = Line()
        peers = Peers(
            trainer=line.to(self.trainer),
            reward=line.to(self._reward),
            bus=line.to(self._bus),
            rollouts=lambda run, config, run_id: self._router,
            load=self._load,
        )
        config = OrchestratorConfig.model_validate(_SETTINGS | self._plan.orchestrator)
        runs = Runs(config, lambda: peers)
        status = await runs.start(RunRequest(config=self._config, resume=resume))
        life = runs._life
        assert life is not None
        killed_s = self._plan.weather.killed_s if self.kills < _KILLS else None
        patience_s = None if killed_s is None else self._chance.expovariate(1 / killed_s)
        await asyncio.wait({life}, timeout=patience_s)
        self._killed = not life.done()
        if not self._killed:
            return runs.get(status.run_id).status()
        self.kills += 1
        directory = Path(status.run_dir)
        as_it_was = directory.with_name("as-it-was")
        shutil.copytree(directory, as_it_was)
        line.cut()
        self.witness.look_away()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        shutil.rmtree(directory)
        as_it_was.rename(directory)
        return status

    def _judge(self, status: RunStatus) -> None:
        if status.state is not RunState.FINISHED:
            self.witness.problems.append(f"the run ended {status.state}: {status.detail}")
            return
        delivered = sum(
            tokens
            for session, tokens in self._router.delivered.items()
            if "evaluation" not in session
        )
        self.witness.judge_end(
            Path(status.run_dir) / "ledger.sqlite",
            self.trainer.lineage,
            None if self.kills else delivered,
        )


def play(plan: RandomSchedule, folder: Path) -> tuple[Life, RunStatus]:
    """Live the run in a folder of its own."""
    lives: list[Life] = []

    async def live() -> RunStatus:
        lives.append(Life(plan, folder))
        return await lives[0].live()

    status = run_virtually(live)
    return lives[0], status
