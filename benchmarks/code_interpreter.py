"""Runs examples/code_interpreter with its tool and without, and records the pass rates.

    python -m benchmarks.code_interpreter [--seeds 2] [--json]

Each run is `millrace demo` of a folder with the example's files: a cluster of its own. A seed makes
a model of its own, which begins with other weights and saw other demonstrations.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, machine, options_of, show, write
from millrace_tools.capacity.machine import free_port

EXAMPLE = ROOT / "examples" / "code_interpreter"
MODEL = "models/code_interpreter-seed"
WAYS = {"with the tool": "rollout", "without it": "without_tool"}
TIMEOUT_S = 3600.0


def prepare(folder: Path, function: str, seed: int) -> None:
    """The example's files, with the model of a seed and one of its environments."""
    shutil.copy(EXAMPLE / "environment.py", folder)
    shutil.copy(EXAMPLE / "tasks.jsonl", folder)
    run = (EXAMPLE / "run.yaml").read_text(encoding="utf-8")
    run = run.replace("environment.py:rollout\n", f"environment.py:{function}\n")
    (folder / "run.yaml").write_text(run.replace("../../runs", "runs"), encoding="utf-8")
    deploy = (EXAMPLE / "laptop.yaml").read_text(encoding="utf-8")
    model = f"{ROOT / MODEL}{seed}"
    (folder / "deploy.yaml").write_text(deploy.replace(f"{MODEL}0", model), encoding="utf-8")


def figures(folder: Path) -> dict[str, Any]:
    """What the run of a folder recorded."""
    (run,) = (folder / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    rates = [[one["step"], one["pass_at"].get("1")] for one in map(json.loads, lines)]
    return {
        "heldout_pass_rate": rates,
        "steps": summary["train_steps"],
        "seconds": round(summary["wall_s"], 1),
        "problems": sorted({one for one in (summary["heldout_problem"],) if one}),
    }


def main() -> None:
    """Run both for each seed, one after the other."""
    parser = options_of(__doc__, "code_interpreter", seeds=(2, "models, from seed 0 on"))
    options = parser.parse_args()
    command = [sys.executable, "-m"]
    found: dict[str, Any] = {**machine(), **{way: [] for way in WAYS}}
    for seed in range(options.seeds):
        make = ["examples.code_interpreter.make_model", "--seed", str(seed)]
        subprocess.run([*command, *make], cwd=ROOT, check=True)
    for way, function in WAYS.items():
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory(prefix="code-interpreter-") as name:
                prepare(Path(name), function, seed)
                demo = [*command, "millrace_tools.main", "demo", name, "--port", str(free_port())]
                subprocess.run(demo, cwd=ROOT, timeout=TIMEOUT_S, check=False)
                found[way].append({"seed": seed, **figures(Path(name))})
            write(options.json, found)
    rows = [
        (f"{way}, seed {one['seed']}", str(one["heldout_pass_rate"]))
        for way in WAYS
        for one in found[way]
    ]
    show(("run", "held-out pass rate by step"), rows)


if __name__ == "__main__":
    main()
