"""Weights & Biases."""

from collections.abc import Mapping
from typing import Any

import wandb

from services.orchestrator.trackers.tracker import TrackedRun
from services.protocol.run.orchestrator import RunState
from services.protocol.run.tracker import WandbTracker

_STEP = "train_step"
_INIT_S = 60.0


class WandbRun:
    """A run of the same id, so that a resumed run continues it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        # Its own steps may never go back, and ours do when some are done again.
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({_STEP: step, **values})

    def rolled_back(self, step: int) -> None:
        """Its history is never rewritten: the later values of a step are the valid ones."""
        self._run.summary["rolled_back_to"] = step

    def close(self, state: RunState) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=int(state is RunState.FAILED))


def open_run(config: WandbTracker, run: TrackedRun) -> WandbRun:
    """Begin or go on with the run of this id."""
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        init_timeout=_INIT_S,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    if config.base_url is not None:
        settings.base_url = config.base_url
    opened = wandb.init(
        project=config.project,
        entity=config.entity,
        mode=config.mode,
        id=run.run_id,
        name=run.run_id,
        resume="allow" if config.mode == "online" else None,
        dir=str(run.run_dir),
        config=dict(run.config),
        settings=settings,
        reinit="create_new",
    )
    return WandbRun(opened)
