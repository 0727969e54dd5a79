"""Whole runs under faults, one after another, for as long as you like; what they hold is counted.

    python -m benchmarks.soak.runs --minutes 120 --fault-every 20 --json

The demo's services on a private cluster train the example again and again while `millrace
chaos` kills, freezes and slows their parts, outside clients ask, and the ledger is audited.
Memory, file descriptors, threads and disk of every process are counted once a minute; whatever
lived long enough must be flat, by slope. Exit code 1 and the reasons if anything was lost, a
run does not end well, or something grows.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.soak.run_census import Census
from services.protocol.run.orchestrator import RunState
from tests.chaos.demo_cluster import DemoCluster, demo_cluster

BASELINE = Path(__file__).parents[1] / "baselines" / "soak_runs.json"
STEPS = 40
LONGEST_RUN_S = 3600.0
_MINUTE_S = 60.0


def main() -> None:
    """Soak, print, and write the figures if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0, help="until the last run begins")
    parser.add_argument("--fault-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--steps", type=int, default=STEPS, help="train steps of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the first run's faults")
    parser.add_argument("--json", type=Path, nargs="?", const=BASELINE, help="write figures here")
    options = parser.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="whole-run-soak-") as folder:
        with demo_cluster(Path(folder)) as demo:
            result = soak(demo, options, console)
    show(result, console)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
        options.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.exit(1 if result["problems"] else 0)


def soak(demo: DemoCluster, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run after run until the time is over; the figures."""
    folders = {"cluster": demo.cluster_folder, "shared memory": Path("/dev/shm")}
    census = Census(os.getpid(), folders, spared=("millrace_tools.main", "millrace_tools.chaos"))
    over, began = threading.Event(), time.monotonic()

    def count() -> None:
        while not over.wait(_MINUTE_S):
            census.take()

    pool = ThreadPoolExecutor(1, thread_name_prefix="census")
    counting = pool.submit(count)
    runs: list[dict[str, Any]] = []
    try:
        while time.monotonic() - began < 60 * options.minutes:
            left_s = 60 * options.minutes - (time.monotonic() - began)
            runs.append(one_run(demo, options, seed=options.seed + len(runs), for_s=left_s))
            console.print(_line(runs[-1]), markup=False, highlight=False)
    finally:
        over.set()
        counting.result()  # a census that broke off shows nothing
    return figures(options, time.monotonic() - began, runs, census)


def one_run(
    demo: DemoCluster, options: argparse.Namespace, *, seed: int, for_s: float
) -> dict[str, Any]:
    """The example once, under faults until the soak's time is over."""
    run_id = demo.start_run(steps=options.steps, seed=seed).run_id
    report = demo.folder / f"{run_id}.json"
    every, seconds = str(options.fault_every), str(max(1.0, for_s))
    chaos = demo.chaos(
        run_id, "--seed", str(seed), "--for", seconds, "--every", every, "--json", str(report)
    )
    try:
        status = demo.follow(run_id, LONGEST_RUN_S)
        said, _ = chaos.communicate(timeout=LONGEST_RUN_S)
    finally:
        chaos.kill()
    drawn = json.loads(report.read_text()) if report.exists() else None
    summary = status.summary
    problems = [f"{run_id}: {one}" for one in drawn["lost"]] if drawn else [f"{run_id}: {said}"]
    if status.state is not RunState.FINISHED:
        problems.append(f"{run_id}: {status.state}: {status.detail}")
    return {
        "run_id": run_id,
        "state": status.state,
        "step": status.step,
        "seconds": status.elapsed_s,
        "pass_rates": [
            None if summary is None else summary.heldout_pass_rate_before,
            None if summary is None else summary.heldout_pass_rate_after,
        ],
        "ledger": status.ledger.model_dump(),
        "problems": problems,
        "recoveries": drawn["recoveries"] if drawn else [],
        "totals": drawn["totals"] if drawn else {},
    }


def figures(
    options: argparse.Namespace, seconds: float, runs: list[dict[str, Any]], census: Census
) -> dict[str, Any]:
    """All that was found out."""
    healed: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for one in run["recoveries"]:
            if not one["refused"]:
                for what in ("leased_s", "stepped_s", "answered_s"):
                    if one[what] is not None:
                        healed[f"{one['fault']} {one['target']}"][what].append(one[what])
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "options": {key: value for key, value in vars(options).items() if key != "json"},
        "seconds": seconds,
        "problems": [one for run in runs for one in run["problems"]] + census.problems(),
        "calls": sum(run["totals"].get("calls", 0) for run in runs),
        "calls_retried": sum(run["totals"].get("calls_retried", 0) for run in runs),
        "audits": sum(run["totals"].get("ledger_audits", 0) for run in runs),
        "runs": [{key: run[key] for key in run.keys() - {"recoveries"}} for run in runs],
        "faults": healed,
        "growth_per_hour": census.growth(),
        "minutes": census.totals,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """The summary, and the reasons if something was wrong."""
    columns = ("fault", "times", "leased again", "next step", "next answer")
    table = Table(*columns, title=f"{result['seconds'] / 60:.1f} minutes; medians and most, s")
    for fault, times in sorted(result["faults"].items()):
        most = max(map(len, times.values()))
        cells = [_spread(times[what]) for what in ("leased_s", "stepped_s", "answered_s")]
        table.add_row(fault, str(most), *cells)
    console.print(table)
    grown = Table("process", "minutes", "MiB/h", "fds/h", "threads/h", title="growth")
    for row in sorted(result["growth_per_hour"], key=lambda one: -one["minutes"])[:24]:
        slopes = (f"{row[what]:g}" for what in ("rss_mib", "fds", "threads"))
        grown.add_row(row["name"], f"{row['minutes']:g}", *slopes)
    console.print(grown)
    for one in result["minutes"][:1] + result["minutes"][-1:]:
        console.print(one)
    console.print(
        f"{len(result['runs'])} runs, {result['calls']} client calls of which"
        f" {result['calls_retried']} were asked again, {result['audits']} audits of the ledger"
    )
    for problem in result["problems"]:
        console.print(f"WRONG  {problem}", markup=False)
    console.print("wrong" if result["problems"] else "nothing lost, nothing grows")


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.1f}, {max(times):.1f}" if times else "-"


def _line(run: dict[str, Any]) -> str:
    before, after = run["pass_rates"]
    faults = run["totals"].get("faults")
    wrong = f", {len(run['problems'])} things wrong" if run["problems"] else ""
    return (
        f"{run['run_id']}: {run['state']} at step {run['step']} after {run['seconds']:.0f} s,"
        f" {faults} faults, held-out {before} -> {after}{wrong}"
    )


if __name__ == "__main__":
    main()
