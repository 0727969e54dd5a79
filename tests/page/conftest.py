"""A run directory made by the orchestrator's own writers, without a run."""

from pathlib import Path

import pytest

from services.orchestrator.ledger import Ledger, Prompt
from services.orchestrator.run_directory import RunDirectory
from services.protocol.evaluation import Evaluation
from services.protocol.orchestrator import RunConfig

STEPS = 4
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    config = RunConfig(
        name="test",
        task_file="tasks.jsonl",
        run_root=str(tmp_path),
        model="tiny",
        steps=STEPS,
        batch_groups=2,
        group_size=2,
    )
    directory = RunDirectory.create(config, "test-1")
    ledger = Ledger(directory.ledger)
    for step in range(1, STEPS + 1):
        _step(directory, ledger, step)
    ledger.close()
    for step, rate in ((0, 0.1), (STEPS, 0.9)):
        directory.append_evaluation(_evaluation(step, rate))
    return directory.path


def _step(directory: RunDirectory, ledger: Ledger, step: int) -> None:
    prompts = [Prompt(position=2 * step + i, epoch=0, task_id=f"task-{i}") for i in range(2)]
    groups = ledger.admit(prompts, version=step - 1)
    for group in groups:
        ledger.rolled_out(group.group_id, oldest_version=step - 1, tokens=20)
    ledger.close_batch(step, train=[groups[0].group_id], filtered=[groups[1].group_id])
    line = {"step": step, "reward": step / STEPS, "elapsed_s": 2.0 * step}
    directory.append_metrics(line | {"trainer": {"entropy": 1.0 / step}})
    kept = {"step": step, "group": groups[0].group_id, "task_id": "task-0", "answer": HOSTILE}
    kept |= {"messages": [{"role": "user", "content": HOSTILE}], "verdict": "accepted"}
    directory.append_trajectories([kept | {"reward": 1.0, "tokens": 20, "policy_versions": [step]}])


def _evaluation(step: int, rate: float) -> Evaluation:
    return Evaluation(
        name="heldout",
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
