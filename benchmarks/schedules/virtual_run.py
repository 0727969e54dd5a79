"""A run of the real orchestrator on a simulated cluster, in virtual time."""

import logging
from pathlib import Path
from typing import Any

from benchmarks.schedules.cluster import Cluster
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState
from tests.orchestrator.fakes import write_tasks
from tests.orchestrator.virtual_clock import run_virtually


def without_output() -> None:
    """Turn off logs and drawing in this process: they cost time and show nothing."""
    logging.disable(logging.CRITICAL)
    RunDirectory.draw_learning_curve = lambda self: None  # type: ignore[method-assign]


def run_file(folder: Path, **keys: Any) -> RunConfig:
    """A run whose tasks and run directory are in a new folder."""
    folder.mkdir()
    tasks = max(64, keys["batch_groups"])
    return RunConfig.model_validate(
        {
            "name": "benchmark",
            "task_file": str(write_tasks(folder / "tasks.jsonl", train=tasks, heldout=1)),
            "run_root": str(folder),
            "model": "tiny",
            "rollout_progress_timeout_s": 2e4,
            "checkpoint": {"every": 1000},
        }
        | keys
    )


def live(run: RunConfig, cluster: Cluster) -> None:
    """Have the orchestrator do the run.

    Raises:
        RuntimeError: the run did not finish.
    """
    config = OrchestratorConfig(
        score_concurrency=4 * cluster.hardware.sandboxes,
        score_batch=1,
        score_timeout_s=2e4,
        replicas_timeout_s=2e4,
    )

    async def to_its_end() -> None:
        runs = Runs(config, lambda: cluster.peers)
        status = await runs.ended((await runs.start(RunRequest(config=run))).run_id)
        if status.state is not RunState.FINISHED:
            raise RuntimeError(f"{run.batch_groups} groups, {run.schedule}: {status.detail}")

    run_virtually(to_its_end, limit_s=1e6)
