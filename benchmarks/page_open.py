"""How long a page over 100,000 trajectories takes to open, beside reading their bytes once.

    python -m benchmarks.page_open [--trajectories 100000] [--tokens 64]

makes a run directory, and measures what a browser waits for: the first answer of each view, and
the same again. The limit is that of the machine: reading the same bytes once.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import options_of
from services.ledger.ledger import Ledger
from services.ledger.sample_group import GroupQuery, Prompt
from services.orchestrator.observers.timeline import Timeline
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.page.reading.details.task_progress import TasksQuery
from services.page.reading.run_folder import RunFolder
from services.page.reading.trajectory_index import TrajectoryQuery
from services.protocol.run.orchestrator import RunConfig

GROUP_SIZE, BATCH_GROUPS, TASKS, REPLICAS = 16, 16, 2000, 8


def make_run(folder: Path, trajectories: int, tokens: int) -> Path:
    """A run directory whose files have the shape of a real one's."""
    groups = trajectories // GROUP_SIZE
    steps = groups // BATCH_GROUPS
    config = RunConfig(
        name="many",
        task_file="tasks.jsonl",
        run_root=str(folder),
        model="m",
        steps=steps,
        batch_groups=BATCH_GROUPS,
        group_size=GROUP_SIZE,
    )
    directory = RunDirectory.create(config, "many-1")
    ledger, timeline = Ledger(directory.ledger), Timeline(directory.timeline)
    chance = random.Random(0)
    with directory.tokens.open("w") as kept, directory.groups.open("w") as lines:
        for step in range(1, steps + 1):
            first = (step - 1) * BATCH_GROUPS
            prompts = [
                Prompt(position=first + i, epoch=0, task_id=f"task-{i}")
                for i in range(BATCH_GROUPS)
            ]
            admitted = ledger.admit(prompts, version=step)
            for one in admitted:
                ledger.rolled_out(one.group_id, oldest_version=step, tokens=GROUP_SIZE * tokens)
            ledger.close_batch(step, train=[one.group_id for one in admitted], filtered=())
            directory.metrics.write(_metrics(step, tokens, chance))
            timeline.span("trainer", "wait", step, step + 0.6, cause="rollout")
            timeline.span("trainer", "train", step + 0.6, step + 1.0, step=step)
            for one in admitted:
                lane = f"replica {one.group_id % REPLICAS}"
                timeline.span(lane, "generate", step, step + 0.9 * chance.random(), answers=16)
                _write_group(kept, lines, one.group_id, step, tokens, chance)
    ledger.close()
    timeline.close()
    return directory.path


def _metrics(step: int, tokens: int, chance: random.Random) -> dict[str, Any]:
    line = {"step": step, "reward": chance.random(), "elapsed_s": float(step)}
    line |= {"policy_version": step, "staleness_mean": 0.5, "staleness_max": 1, "truncated": 0.01}
    line |= {"tokens_sampled": step * BATCH_GROUPS * GROUP_SIZE * tokens}
    return line | {"trainer": {"entropy": chance.random(), "learning_rate": 1e-6}}


def _write_group(
    kept: Any, lines: Any, group: int, step: int, tokens: int, chance: random.Random
) -> None:
    rewards = [float(chance.random() < 0.5) for _ in range(GROUP_SIZE)]
    task = chance.randrange(TASKS)
    known: dict[str, Any] = {"task_id": f"task-{task}"}
    known |= {"kind": f"kind-{task % 7}", "difficulty": str(task % 5)}
    mean = sum(rewards) / GROUP_SIZE
    known |= {"rewards": rewards, "advantages": [round(one - mean, 4) for one in rewards]}
    known |= {"verdicts": ["accepted" if one else "wrong_answer" for one in rewards]}
    known |= dict.fromkeys(("oldest_versions", "newest_versions"), [step] * GROUP_SIZE)
    known |= {"lengths": [tokens] * GROUP_SIZE, "rollout_s": 0.9, "score_s": 0.1}
    lines.write(json.dumps({"group": group, "step": step} | known) + "\n")
    numbers = [round(-chance.random(), 4) for _ in range(tokens)]
    for index, reward in enumerate(rewards):
        line = {"step": step, "group": group, "trajectory": index, "task_id": f"task-{task}"}
        line |= {"reward": reward, "verdict": known["verdicts"][index], "tokens": tokens}
        line |= {"advantage": reward - mean, "advantages": [round(reward - mean, 4)] * tokens}
        line |= {"sampled": [1] * tokens}
        line |= {"policy_versions": [step], "messages": [], "answer": "word " * tokens}
        line |= {"token_ids": list(range(tokens)), "behaviour": numbers, "trainer": numbers}
        kept.write(json.dumps(line | {"spans": [[step, 0, tokens, "a"]]}) + "\n")


def timed(ask: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    ask()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Print a line for each view, and the ratio of opening to reading the bytes."""
    asked = options_of(__doc__, trajectories=100_000, tokens=64).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make_run(Path(folder), asked.trajectories, asked.tokens)
        files = list(path.glob("*.jsonl"))
        size = sum(file.stat().st_size for file in files)
        limit, _ = timed(lambda: [file.read_bytes() for file in files])
        print(f"{asked.trajectories} trajectories, {size / 1e6:.0f} MB; read in {limit:.3f} s")
        run = RunFolder(path)
        questions: dict[str, Callable[[], object]] = {
            "overview": run.overview,
            "curves": lambda: run.curves(800),
            "tasks": lambda: run.details.tasks(TasksQuery()),
            "timeline": lambda: run.timeline(None, None, 130),
            "groups": lambda: run.groups(GroupQuery()),
            "trajectories of a step": lambda: run.trajectories(TrajectoryQuery(step=5)),
            "one trajectory": lambda: run.trajectory(asked.trajectories // 2),
        }
        opening = 0.0
        for name, question in questions.items():
            (first, cpu), (again, _) = timed(question), timed(question)
            opening += first
            print(f"{name:24} first {first:.3f} s ({cpu:.3f} CPU-s), again {again:.3f} s")
        print(f"opening over reading: {opening / limit:.1f}")


if __name__ == "__main__":
    main()
