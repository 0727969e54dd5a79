"""Learning curves of every schedule, algorithm and correction, on the real services.

For each seed and example it deploys deploy/laptop.yaml once and submits run after run to it; each
is the example's run file with the changes that benchmarks/learning/matrix.yaml lists:

    python -m benchmarks.learning [--only 'presets/*'] [--seeds 0 1 2] [--list] [--draw]

Each finished run is in the results file at once, and is not run again: press Ctrl-C at any time,
and start the same command again. A configuration whose overrides have changed is run again.
"""

import fnmatch
import subprocess
import sys
import tempfile
from itertools import groupby
from typing import Any

from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.learning.figures import draw
from benchmarks.learning.matrix import Configuration, configurations
from benchmarks.learning.page import PAGE, filled
from benchmarks.learning.results import RESULTS, Results, outcome
from benchmarks.report import ROOT, options_of
from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.demo.demo import DemoOptions, terminated_like_interrupted
from millrace_tools.run.follow import follow


def main() -> None:
    """Run what is missing, then draw."""
    parser = options_of(
        __doc__,
        "learning",
        only=(["*"], "patterns of names"),
        seeds=[0, 1, 2],
        steps=(60, "train steps of each run"),
        list=(False, "say what is missing, run nothing"),
        draw=(False, "draw the results, run nothing"),
    )
    parser.set_defaults(json=RESULTS)
    options = parser.parse_args()
    console = Console()
    results = Results.read(options.json)
    if not options.draw:
        for seed in options.seeds:
            missing = [
                one
                for one in configurations()
                if any(fnmatch.fnmatch(one.name, pattern) for pattern in options.only)
                and not results.has(one, seed=seed, steps=options.steps)
            ]
            if options.list:
                console.print(*(f"{one.name} seed {seed}" for one in missing), sep="\n")
                continue
            for _, of_example in groupby(missing, key=lambda one: one.example):
                run_seed(list(of_example), results, seed=seed, steps=options.steps, console=console)
    if not options.list:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
        console.print(PAGE, *draw(results), sep="\n")


def run_seed(
    missing: list[Configuration], results: Results, *, seed: int, steps: int, console: Console
) -> None:
    """Deploy once and run them all, one after another."""
    options = DemoOptions(seed=seed, port=free_port(), steps=steps)
    with (
        terminated_like_interrupted(),
        tempfile.TemporaryDirectory(prefix="learning-") as run_root,
        deployed(options, console, **arguments_for(missing[0].example, seed)),
    ):
        with RunsClient(options.url) as client:
            for number, one in enumerate(missing, 1):
                console.print(f"{number}/{len(missing)} {one.name} seed {seed}")
                config = one.run_config(seed=seed, steps=steps, run_root=run_root)
                status = follow(client, client.start(config), console)
                line = outcome(one, status, seed=seed, steps=steps)
                results.add(line)
                console.print(line.summary, highlight=False)


def arguments_for(example: str, seed: int) -> dict[str, dict[str, Any]]:
    """Of the applications that differ from deploy/laptop.yaml; the shop's model is made."""
    # Two of each, so that every part of the way takes part in the learning.
    arguments: dict[str, dict[str, Any]] = {
        "trainer": {"world_size": 2},
        "rollout_server": {"replicas": 2},
    }
    if example == "tiny_code":
        return arguments
    make = [sys.executable, "-m", f"examples.{example}.make_model", "--seed", str(seed)]
    subprocess.run(make, cwd=ROOT, check=True)
    model = {"model": str(ROOT / "models" / f"{example}-seed{seed}")}
    arguments = {name: had | model for name, had in arguments.items()}
    arguments["rollout_server"]["served_model_name"] = example  # as its run file says
    return arguments | {"orchestrator": {"environments": True}}


if __name__ == "__main__":
    main()
