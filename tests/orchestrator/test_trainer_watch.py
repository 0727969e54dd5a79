"""How long the orchestrator waits for the trainer, in virtual time."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.loop.recovery import start_trainer
from services.orchestrator.loop.trainer_watch import watched
from services.protocol.errors import NotReady
from services.protocol.trainer import RankProgress, TrainerState
from tests.orchestrator.virtual_clock import run_virtually

HOURS = 3600.0


class Trainer:
    """Its state is what `tell` says."""

    def __init__(self) -> None:
        self.ready, self.progress, self.failed_starts = True, RankProgress(phase="loading"), 0
        self.gone = False
        self.start_s, self.starts, self.losses = 0.0, 0, 0
        self.began = asyncio.get_running_loop().time()

    async def state(self) -> TrainerState:
        if self.gone:
            raise NotReady("trainer is not up")
        return TrainerState(
            ready=self.ready,
            run_id=None,
            step=0,
            policy_version=0,
            world_size=2,
            row_groups=2,
            parameters=1,
            progress=self.progress,
            failed_starts=self.failed_starts,
        )

    async def start_run(self, start: Any) -> TrainerState:
        self.starts += 1
        await asyncio.sleep(self.start_s)
        if self.starts <= self.losses:
            raise NotReady("a rank was lost")
        return await self.state()


def context_of(trainer: Trainer) -> Any:
    return SimpleNamespace(
        config=OrchestratorConfig(trainer_timeout_s=300.0),
        peers=SimpleNamespace(trainer=trainer),
        progress=SimpleNamespace(detail="training step 3"),
        start=SimpleNamespace(run_id="run"),
    )


def test_a_call_of_hours_goes_on_while_the_trainer_works_and_the_run_says_what_it_does() -> None:
    async def work() -> None:
        trainer = Trainer()
        context = context_of(trainer)
        said = set()

        async def step() -> str:
            for index in range(8):
                trainer.progress = RankProgress(phase="micro-batch", done=index + 1, total=8)
                await asyncio.sleep(HOURS)
                said.add(context.progress.detail)
            return "done"

        assert await watched(context, step()) == "done"
        assert said == {f"training step 3: micro-batch {n} of 8" for n in range(1, 9)}
        assert context.progress.detail == "training step 3"

    run_virtually(work)


@pytest.mark.parametrize("how", ["gone", "idle"])
def test_a_trainer_that_is_gone_or_knows_nothing_of_the_call_is_given_up(how: str) -> None:
    async def work() -> float:
        trainer = Trainer()
        trainer.gone, trainer.progress = how == "gone", None  # type: ignore[assignment]
        with pytest.raises(NotReady, match="no work for 300 s"):
            await watched(context_of(trainer), asyncio.sleep(10 * HOURS))
        return asyncio.get_running_loop().time()

    assert 300 < run_virtually(work) < 320


def test_a_start_of_hours_is_waited_for() -> None:
    async def work() -> None:
        trainer = Trainer()
        trainer.ready, trainer.start_s = False, 2 * HOURS
        asyncio.get_running_loop().call_later(3 * HOURS, setattr, trainer, "ready", True)
        assert (await start_trainer(context_of(trainer))).ready

    run_virtually(work)


def test_a_trainer_that_fails_to_start_again_and_again_is_given_up() -> None:
    async def work() -> float:
        trainer = Trainer()
        trainer.ready, trainer.failed_starts = False, 4
        with pytest.raises(NotReady, match="no progress for 300 s: its ranks are not all up"):
            await start_trainer(context_of(trainer))
        return asyncio.get_running_loop().time()

    assert 300 < run_virtually(work) < 320


def test_a_start_that_fails_after_hours_of_work_is_tried_again_a_few_times() -> None:
    async def work(losses: int) -> int:
        trainer = Trainer()
        trainer.start_s, trainer.losses = 2 * HOURS, losses
        context = context_of(trainer)
        allowed = context.config.recoveries_in_row
        if losses <= allowed:
            assert (await start_trainer(context)).ready
        else:
            with pytest.raises(NotReady, match="no progress for 300 s: a rank was lost"):
                await start_trainer(context)
        return trainer.starts

    allowed = OrchestratorConfig().recoveries_in_row
    assert run_virtually(partial(work, allowed)) == allowed + 1
    assert run_virtually(partial(work, allowed + 9)) == allowed + 2
