"""The cost of runs that repeat: sampling and whole steps, as ratios to the same run without.

    python -m benchmarks.determinism

The example's model on the services of deploy/laptop.yaml, in `sync`. The two ways take turns, each
with services of its own: `determinism: true` in both files, or in neither. The first step of each
run is left out. The checkpoints of the runs with determinism must be equal.
"""

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.report import Bar, by_name, in_turn, machine, options_of, ratio, show, write
from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.demo.demo import DemoOptions
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig, RunState
from services.trainer.checkpoints.folder import choose

RUN_FILE = Path("examples/tiny_code/run.yaml")
WAYS = "plain", "repeats"
_LOOK_S, _LONGEST_S = 0.5, 1800.0


def main() -> None:
    """Measure, print, and write the figures if asked."""
    options = options_of(
        __doc__, "determinism", rounds=(3, "runs of each way"), steps=(6, "train steps of a run")
    ).parse_args()
    rounds = []
    for round_ in range(options.rounds):
        rounds.append({way: run(way == "repeats", options.steps) for way in in_turn(WAYS, round_)})
    report(by_name(rounds))
    write(options.json, {**machine(), "rounds": rounds})


def run(repeats: bool, steps: int) -> dict[str, Any]:
    """Medians over the steps of a run, seconds, and the digests of its last checkpoint."""
    demo = DemoOptions(seed=0, port=free_port(), steps=steps)
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        plain = read_run_file(RUN_FILE, seed=0, steps=steps).model_dump()
        changes = {
            "run_root": folder,
            "schedule": {"preset": "sync"},
            "evaluation": {"tasks": 1},
            "determinism": repeats,
        }
        config = RunConfig.model_validate(plain | changes)
        with deployed(demo, Console(quiet=True), rollout_server={"determinism": repeats}):
            run_dir = finished(demo.url, config)
        text = (run_dir / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()][1:]
        files = choose(run_dir).manifest.files
    return {
        "sampling_s": median(one["rollout_s_max"] for one in lines),
        "step_s": median(sum(one["seconds"].values()) for one in lines),
        "tokens": sum(one["response_tokens_mean"] * one["trajectories"] for one in lines),
        "digests": {name: one.blake3 for name, one in files.items() if name != ".metadata"},
    }


def finished(url: str, config: RunConfig) -> Path:
    """The folder of the run when it is over."""
    deadline = time.monotonic() + _LONGEST_S
    with RunsClient(url) as client:
        status = client.start(config)
        while status.state not in (RunState.FINISHED, RunState.FAILED, RunState.STOPPED):
            assert time.monotonic() < deadline, f"{status.run_id} takes too long"
            time.sleep(_LOOK_S)
            status = client.status(status.run_id)
    assert status.state is RunState.FINISHED, status.detail
    return Path(status.run_dir)


def report(ways: dict[str, list[dict[str, Any]]]) -> None:
    """A table of both ways, the ratios, and whether the repeating runs were equal."""
    plain, repeats = (by_name(ways[way]) for way in WAYS)
    names = {"sampling_s": "a batch is sampled, s", "step_s": "a step and its wait, s"}
    rows = []
    for name, says in names.items():
        times = ratio(repeats[name], plain[name])
        cells = (f"{median(one[name]):.2f}" for one in (plain, repeats))
        rows.append((says, *cells, f"{times:.2f}"))
    show(("", "without", "with determinism", "ratio"), rows)
    different = len({json.dumps(one) for one in repeats["digests"]})
    print(Bar(name="different checkpoints", found=different, limit=1, at_most=True))


if __name__ == "__main__":
    main()
