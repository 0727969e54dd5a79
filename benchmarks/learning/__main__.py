"""Learning curves of every schedule, algorithm and correction, on the real services.

For each seed it deploys deploy/laptop.yaml once and submits run after run to it; each is the
demo's run file with the changes that benchmarks/learning/matrix.py lists:

    python -m benchmarks.learning [--only 'presets/*'] [--seeds 0 1 2] [--list] [--draw]

What is finished is in the results file at once, and is not run again: Ctrl-C at any time, and
the same command goes on. A configuration whose overrides have changed is run again.
"""

import argparse
import fnmatch
import os
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.learning.figures import draw
from benchmarks.learning.matrix import Configuration, configurations
from benchmarks.learning.page import PAGE, filled
from benchmarks.learning.results import RESULTS, Results, outcome
from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.demo.demo import (
    DEPLOY_FILE,
    RUN_FILE,
    SERVICES_S,
    DemoOptions,
    finish_model,
    model_maker,
    resolved,
    terminated_like_interrupted,
)
from millrace_tools.run.follow import follow
from services.protocol.run.orchestrator import RunConfig
from services.protocol.yaml_text import load_yaml

STEPS = 60


def main() -> None:
    """Run what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS, help="train steps of each run")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results file")
    parser.add_argument("--list", action="store_true", help="say what is missing, run nothing")
    parser.add_argument("--draw", action="store_true", help="draw what is there, run nothing")
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
            elif missing:
                run_seed(missing, results, seed=seed, steps=options.steps, console=console)
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
        model_maker(options) as maker,
        PrivateCluster(num_cpus=max(2, os.cpu_count() or 2)) as cluster,
    ):
        cluster.start()
        finish_model(maker)
        content = resolved(load_yaml(DEPLOY_FILE), options)
        args = {application["name"]: application["args"] for application in content["applications"]}
        # Two of each, so that every part of the way takes part in what is learned.
        args["trainer"]["world_size"] = args["rollout_server"]["replicas"] = 2
        replicas = cluster.deploy(content, console, timeout_s=SERVICES_S)
        cluster.wait_for_leases(options.url, replicas, timeout_s=SERVICES_S)
        with RunsClient(options.url) as client:
            for number, one in enumerate(missing, 1):
                console.print(f"{number}/{len(missing)} {one.name} seed {seed}")
                config = run_config(one, seed=seed, steps=steps, run_root=run_root)
                status = follow(client, client.start(config), console)
                line = outcome(one, status, seed=seed, steps=steps)
                results.add(line)
                console.print(line.summary, highlight=False)


def run_config(one: Configuration, *, seed: int, steps: int, run_root: str) -> RunConfig:
    """What is sent to the orchestrator: as if the demo's run file held the changes."""
    data = one.run_data(seed=seed, steps=steps, run_root=run_root)
    data["task_file"] = str(RUN_FILE.parent / data["task_file"])
    return RunConfig.from_data(data, source=one.name)


if __name__ == "__main__":
    main()
