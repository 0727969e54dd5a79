"""A run directory made by the orchestrator's own writers, without a run."""

import json
from pathlib import Path
from typing import Any

from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
from services.orchestrator.observers.timeline import Timeline
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import RunConfig

STEPS = 4
TOKENS = {
    "tokens": 3,
    "token_ids": [5, 6, 7],
    "sampled": [1, 1, 1],
    "behaviour": [-0.5, -1.0, -0.1],
    "trainer": [-0.4, -1.2, None],
    "advantages": [1.0, 1.0, None],
    "spans": [[0, 0, 1, "a"], [1, 1, 3, "a"]],
}
NEVER_CLIPPED = {"clip_fraction_low": 0.0, "clip_fraction_high": 0.0}
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def make_run(folder: Path) -> Path:
    """A run of four steps in `folder`; its answers try to be more than text."""
    config = RunConfig(
        name="test",
        task_file="tasks.jsonl",
        run_root=str(folder),
        model="tiny",
        steps=STEPS,
        batch_groups=2,
        group_size=2,
    )
    directory = RunDirectory.create(config, "test-1")
    ledger = Ledger(directory.ledger)
    for step in range(1, STEPS + 1):
        _step(directory, ledger, step)
    ledger.note(tokens_evaluated=200)
    ledger.close()
    for step, rate in ((0, 0.1), (STEPS, 0.9)):
        directory.append_evaluation(_evaluation(step, rate))
        directory.heldout_answers.write(_heldout_answer(step, rate))
    _tell_times(directory)
    return directory.path


def add_step(path: Path, step: int) -> None:
    """One more train step, as a run in progress writes it."""
    directory, ledger = RunDirectory(path), Ledger(path / "ledger.sqlite")
    _step(directory, ledger, step)
    ledger.close()


def write_log(path: Path) -> None:
    """Lines of the orchestrator: steps, a warning, an error, and text of a model."""
    lines = [{"level": "info", "event": "step", "step": step} for step in range(1, STEPS + 1)]
    lines += [
        {"level": "warning", "event": "rollout_failed", "error": "HTTP 500", "group": 3},
        {"level": "info", "event": "heldout_answer", "text": HOSTILE},
        {"level": "error", "event": "push_failed", "error": "replica a: no answer in 30 s"},
    ]
    with (path / "log.jsonl").open("w") as file:
        for second, line in enumerate(lines):
            at = f"2026-01-01T00:00:{second:02}.000Z"
            file.write(json.dumps({"time": at, "run": "test-1"} | line) + "\n")


def write_usage(path: Path) -> None:
    """Load of engines and of two nodes, one with GPUs."""
    with (path / "usage.jsonl").open("w") as file:
        for look in range(12):
            busy = {"in_flight": look, "waiting": look % 3, "queued": 0, "kv_usage": look / 20}
            first = {"cpu": 0.5, "memory": 0.25 + look / 100}
            second = first | {"gpu": look / 12, "gpu_memory": 0.75}
            line = {"at": 1000.0 + 5 * look, "engines": busy}
            nodes = {"10.0.0.1": first, "10.0.0.2": second}
            file.write(json.dumps(line | {"nodes": nodes}) + "\n")


def _tell_times(directory: RunDirectory) -> None:
    timeline = Timeline(directory.timeline)
    for step in range(1, STEPS + 1):
        at = 1000.0 + 10 * step
        timeline.span("replica a", "generate", at, at + 5, group=step, answers=2, tokens=20)
        timeline.span("sandbox host-1/0", "score", at + 4, at + 6, group=step, verdict="accepted")
        timeline.span("trainer", "wait", at, at + 6, cause="rollout")
        timeline.span("trainer", "train", at + 6, at + 8, step=step, version=step)
        timeline.span("trainer 0", "forward_backward", at + 6, at + 7, step=step)
        push = {"stage_s": 0.5, "commit_s": 0.4, "paused_s": 0.2}
        timeline.span("replica a", "push", at + 8, at + 9, version=step, **push)
    timeline.close()


def _step(directory: RunDirectory, ledger: Ledger, step: int) -> None:
    prompts = [Prompt(position=2 * step + i, epoch=0, task_id=f"task-{i}") for i in range(2)]
    groups = ledger.admit(prompts, version=step - 1)
    for group in groups:
        ledger.rolled_out(group.group_id, oldest_version=step - 1, tokens=20)
    ledger.close_batch(step, train=[groups[0].group_id], filtered=[groups[1].group_id])
    line = {"step": step, "reward": step / STEPS, "elapsed_s": 2.0 * step}
    directory.metrics.write(line | {"trainer": {"entropy": 1.0 / step, **NEVER_CLIPPED}})
    kept = {"step": step, "group": groups[0].group_id, "task_id": "task-0", "answer": HOSTILE}
    kept |= {"messages": [{"role": "user", "content": HOSTILE}], "verdict": "accepted"}
    directory.trajectories.write(kept | {"reward": 1.0, "tokens": 20, "policy_versions": [step]})
    with directory.tokens.open("a") as file:
        for index in range(2):
            record = kept | {
                "trajectory": index,
                "reward": 1.0 - index,
                "advantage": 1.0 - 2 * index,
            }
            file.write(json.dumps(record | TOKENS | {"policy_versions": [step - 1, step]}) + "\n")
    rewards = {"rewards": [1.0, 0.0], "advantages": [1.0, -1.0], "verdicts": ["accepted", HOSTILE]}
    lengths = {"lengths": [3, 3], "oldest_versions": [0, 0], "newest_versions": [1, 1]}
    known: dict[str, Any] = {"group": groups[0].group_id, "step": step}
    known |= {
        "rollout_s": 1.0,
        "score_s": 0.5,
        "task_id": "task-0",
        "kind": "code",
        "difficulty": "3",
        "source": "tasks.jsonl",
    }
    with directory.groups.open("a") as file:
        file.write(json.dumps(known | rewards | lengths) + "\n")


def _heldout_answer(step: int, rate: float) -> dict[str, Any]:
    known = {"set": "heldout", "step": step, "task_id": "heldout-1", "prompt": HOSTILE}
    answer = {"answer": f"{HOSTILE} after {step}", "verdict": "accepted", "detail": "", "tokens": 3}
    return known | answer | {"reward": round(rate)}


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
