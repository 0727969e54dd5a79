"""Directories of several runs, made by the orchestrator's own writers, without a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import LedgerCounts, RunConfig, RunSummary

STEPS = 4
TOKENS_A_STEP = 500


def make_runs(folder: Path) -> dict[str, Path]:
    """Three runs: `fast` was best in its middle, `slow` learned less, `broken` broke."""
    return {
        "slow": make(folder, "slow", {0: 0.1, STEPS: 0.4}, algorithm={"learning_rate": 1e-4}),
        "fast": make(folder, "fast", {0: 0.1, 2: 0.9, STEPS: 0.8}, algorithm={"preset": "cispo"}),
        "broken": make(folder, "broken", {0: 0.1}, done=1, error="Traceback: out of memory"),
    }


def make(
    folder: Path,
    run_id: str,
    rates: Mapping[int, float],
    *,
    done: int = STEPS,
    error: str = "",
    algorithm: Mapping[str, Any] | None = None,
) -> Path:
    """One run.

    Args:
        folder: gets its directory.
        run_id: name of the directory.
        rates: held-out pass rates by step.
        done: train steps that it did.
        error: why it broke; it has no summary then.
        algorithm: keys of its run file.
    """
    config = RunConfig(
        name="test",
        task_file="tasks.jsonl",
        run_root=str(folder),
        model="tiny",
        steps=STEPS,
        batch_groups=2,
        group_size=2,
        algorithm=AlgorithmConfig.model_validate(algorithm or {}),
    )
    directory = RunDirectory.create(config, run_id)
    ledger = Ledger(directory.ledger)
    for step in range(1, done + 1):
        _step(directory, ledger, step)
    ledger.close()
    for step, rate in rates.items():
        directory.append_evaluation(evaluation("heldout", step, rate))
    if error:
        directory.write_error(error)
    else:
        directory.write_summary(_summary(run_id, done))
    directory.close()
    return directory.path


def _step(directory: RunDirectory, ledger: Ledger, step: int) -> None:
    prompt = Prompt(position=step, epoch=0, task_id=f"task-{step}")
    (group,) = ledger.admit([prompt], version=step - 1)
    ledger.rolled_out(group.group_id, oldest_version=step - 1, tokens=TOKENS_A_STEP)
    ledger.close_batch(step, train=[group.group_id], filtered=[])
    line: dict[str, Any] = {"step": step, "reward": step / STEPS, "elapsed_s": 2.0 * step}
    line |= {"tokens_sampled": TOKENS_A_STEP * step, "trainer": {"entropy": 1.0 / step}}
    directory.metrics.write(line)


def evaluation(name: str, step: int, rate: float) -> Evaluation:
    """One of ten tasks."""
    return Evaluation(
        name=name,
        step=step,
        tasks=10,
        samples=1,
        temperature=0.0,
        graded=10,
        answers=10,
        pass_at={1: rate},
        reward=rate,
        oldest_version=step,
        newest_version=step,
        tokens=100,
        seconds=1.0,
    )


def _summary(run_id: str, done: int) -> RunSummary:
    return RunSummary(
        run_id=run_id,
        heldout_pass_rate_before=None,
        heldout_pass_rate_after=None,
        train_steps=done,
        wall_s=2.0 * done + 1,
        weight_pushes=done,
        policy_version=done,
        seed=0,
        ledger=LedgerCounts(),
    )
