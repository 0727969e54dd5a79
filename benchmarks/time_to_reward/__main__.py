"""Wall time to a held-out pass rate: Millrace's whole stack beside TRL's GRPO trainer.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install trl==1.16.0
    python -m benchmarks.time_to_reward --peers /tmp/peers

Both learn examples/tiny_code from the same initial model, one after the other on the same cores,
with the run file's batch, minibatches, learning rate, clip distances and length limit, until
the greedy pass rate on the same held-out tasks is reached. Ours are the real services of
deploy/laptop.yaml: router, engines, sandboxes, trainer ranks and weight bus.

TRL runs twice, with each of the gradings of `grading.py`: `process` isolates
answers a little, and the bar is over that; `inline` not at all. Our sandboxes do more than both.

Other things favour TRL, too: its evaluations stop its clock, while ours run beside training and
slow it, and it keeps no checkpoints. It generates with transformers: TRL 1.16 supports vLLM 0.22
to 0.31, and the CPU build that we run with is 0.32. Other settings are TRL's defaults, but for
activation checkpointing, bfloat16 and the falling learning rate, which are off on both sides.

Our time at a pass rate is that of the newest weights that any answer of the evaluation came from.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import machine, options_of, show, write
from benchmarks.time_to_reward import ours, peer
from benchmarks.time_to_reward.goal import Goal, Side
from benchmarks.time_to_reward.grading import GRADINGS
from examples.tiny_code.make_model import TASK_FILE, make_model, write_tasks
from millrace_tools.demo.demo import ROOT, RUN_FILE
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig

BAR = 2.0


def main() -> None:
    """Measure, print, and write the figures if asked."""
    parser = options_of(
        __doc__,
        "time_to_reward",
        seeds=[0],
        target=(0.8, "held-out pass rate"),
        every=(2, "train steps between evaluations"),
        steps=(80, "most train steps of a side"),
        seconds=(150.0, "longest training of a side"),
        threads=(2, "of TRL's process"),
        port=(8000, "of our HTTP API"),
        peers=(Path, "a virtual environment with TRL"),
    )
    options = parser.parse_args()
    result = measure(options, Console(width=110))
    print_sides(result)
    write(options.json, result)


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Both sides for every seed."""
    goal = Goal(
        pass_rate=options.target, every=options.every, steps=options.steps, seconds=options.seconds
    )
    sides: dict[str, list[Side]] = {"millrace": []}
    for seed in options.seeds:
        model = ROOT / "models" / f"tiny_code-seed{seed}"
        write_tasks(TASK_FILE)
        make_model(model, seed)
        run = read_run_file(RUN_FILE, seed=seed, steps=goal.steps)
        for grading in GRADINGS if options.peers else ():
            python = options.peers / "bin" / "python"
            how = {"threads": options.threads, "grading": grading}
            trl = peer.reach(goal, run, model, python, **how)
            sides.setdefault(f"trl {grading}", []).append(trl)
        sides["millrace"].append(ours.reach(goal, run, options.port, console))
    return {
        **machine(),
        "goal": vars(goal),
        "run": settings(run),
        "seeds": options.seeds,
        "sides": {name: [vars(one) for one in several] for name, several in sides.items()},
        "ratios": {
            name: ratios(sides["millrace"], several)
            for name, several in sides.items()
            if name != "millrace"
        },
        "bar": BAR,
    }


def settings(run: RunConfig) -> dict[str, Any]:
    """Settings that both sides share."""
    return {
        "batch_groups": run.batch_groups,
        "group_size": run.group_size,
        "minibatches": run.algorithm.minibatches,
        "learning_rate": run.algorithm.learning_rate,
        "max_tokens": run.sampling.max_tokens,
        "heldout_tasks": run.evaluation.tasks,
    }


def ratios(ours: list[Side], theirs: list[Side]) -> dict[str, float]:
    """Medians over seeds of TRL's over ours; a side that did not get there counts what it spent."""
    pairs = list(zip(ours, theirs, strict=True))
    quotients = {
        "wall": [b.train_s / a.train_s for a, b in pairs],
        "wall with start-up": [b.whole_s / a.whole_s for a, b in pairs],
        "CPU": [b.train_cpu_s / a.train_cpu_s for a, b in pairs],
        "wall of a step": [b.step_s / a.step_s for a, b in pairs],
    }
    return {name: statistics.median(several) for name, several in quotients.items()}


def print_sides(result: dict[str, Any]) -> None:
    """Print both sides, seed by seed, and the ratios."""
    rows = []
    for name, several in result["sides"].items():
        for seed, one in zip(result["seeds"], several, strict=True):
            figures = [f"{one[key]:.1f}" for key in ("train_s", "train_cpu_s", "startup_s")]
            rates = " ".join(f"{100 * value:.0f}" for _, value in one["rates"])
            reached = "yes" if one["reached"] else "NO"
            rows.append([name, str(seed), reached, str(one["steps"]), *figures, rates])
    rate = result["goal"]["pass_rate"]
    columns = ("side", "seed", "reached", "steps", "training s", "CPU s", "start-up s", "rates")
    title = f"To a held-out pass rate of {rate:.0%} on {result['cores']} cores"
    show(columns, rows, title=title)
    for side, several in result["ratios"].items():
        for name, ratio in several.items():
            judged = (side, name) == ("trl process", "wall")
            bar = f"  (bar {BAR:g}: {'met' if ratio >= BAR else 'MISSED'})" if judged else ""
            print(f"{side}, {name}: {ratio:.2f} times as much as Millrace{bar}")


if __name__ == "__main__":
    main()
