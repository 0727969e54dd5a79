"""Whole runs under faults, one after another, for as long as you like; what they hold is counted.

    python -m benchmarks.soak.runs --minutes 120 --fault-every 20 --json

The demo's services on a private cluster train the example again and again while `millrace
chaos` kills, freezes and slows their parts, outside clients ask, and the ledger is audited.
Memory, file descriptors, threads and disk of every process are counted once a minute; whatever
lived long enough must be flat, by slope. Exit code 1 and the reasons if anything was lost, a
run does not end well, or something grows.
"""

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import middle_and_largest, options_of
from benchmarks.soak.census import Census, Rules
from benchmarks.soak.engine import conclude
from services.protocol.run.orchestrator import RunState
from tests.chaos.demo_cluster import DemoCluster, demo_cluster

LONGEST_RUN_S = 3600.0
WARM_S = 180.0
COUNTER = ("millrace_tools.main", "millrace_tools.chaos")
"""Words in the command lines of processes that come and go with the measurement."""
RULES = Rules(
    more_an_hour={"rss_mib": 32.0, "fds": 8.0, "threads": 8.0, "disk_mib": 64.0},
    warm_s=WARM_S,
    least_s=10 * WARM_S,
    least_share=1 / 3,
    # Processes that have just been replaced are smaller and larger.
    share_an_hour=0.1,
)
HEALED = {"leased_s": "leased again", "stepped_s": "next step", "answered_s": "next answer"}
_MINUTE_S = 60.0


def main() -> None:
    """Soak, print, and write the figures if asked."""
    parser = options_of(
        __doc__,
        "soak_runs",
        minutes=(120.0, "until the last run begins"),
        fault_every=(20.0, "seconds"),
        steps=(40, "train steps of a run"),
        seed=(0, "of the first run's faults"),
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-runs-") as folder:
        with demo_cluster(Path(folder)) as demo:
            folders = {"cluster": demo.cluster_folder, "shared memory": Path("/dev/shm")}
            census = Census(cluster_processes, RULES, folders)
            began = time.monotonic()
            runs = soak(demo, options, census)
            seconds = time.monotonic() - began
    problems, figures = [one for run in runs for one in run["problems"]], _figures(runs)
    conclude(options, seconds, census, problems, figures, summary(figures))


def soak(demo: DemoCluster, options: argparse.Namespace, census: Census) -> list[dict[str, Any]]:
    """Run after run until the time is over."""
    over, began = threading.Event(), time.monotonic()

    def count() -> None:
        while not over.wait(_MINUTE_S):
            census.take()

    counting = ThreadPoolExecutor(1, thread_name_prefix="census").submit(count)
    runs: list[dict[str, Any]] = []
    try:
        while time.monotonic() - began < 60 * options.minutes:
            left_s = 60 * options.minutes - (time.monotonic() - began)
            runs.append(one_run(demo, options, seed=options.seed + len(runs), for_s=left_s))
            print(_line(runs[-1]))
    finally:
        over.set()
        counting.result()  # a census that broke off shows nothing
    return runs


def cluster_processes() -> dict[int, str]:
    """Descendants of this process, by Ray's title or the program and, of Python, the script."""
    names = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end meanwhile
            words = process.cmdline()
            if words and not any(part in " ".join(words) for part in COUNTER):
                script = next((Path(word).name for word in words[1:] if word.endswith(".py")), "")
                title = words[0].startswith("ray::")
                name = words[0] if title else f"{Path(words[0]).name} {script}"
                names[process.pid] = name.strip()
    return names


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
    nothing = {"lost": [said], "recoveries": [], "totals": {}}
    drawn = json.loads(report.read_text()) if report.exists() else nothing
    summary = status.summary
    problems = [f"{run_id}: {one}" for one in drawn["lost"]]
    if status.state is not RunState.FINISHED:
        problems.append(f"{run_id}: {status.state}: {status.detail}")
    return {
        "run_id": run_id,
        "state": status.state,
        "step": status.step,
        "seconds": status.elapsed_s,
        "pass_rates": [
            summary and summary.heldout_pass_rate_before,
            summary and summary.heldout_pass_rate_after,
        ],
        "ledger": status.ledger.model_dump(),
        "problems": problems,
        "recoveries": drawn["recoveries"],
        "totals": drawn["totals"],
    }


def _figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    healed: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in (one for run in runs for one in run["recoveries"] if not one["refused"]):
        for what in HEALED:
            if one[what] is not None:
                healed[f"{one['fault']} {one['target']}"][what].append(one[what])
    totals = {"calls": "calls", "calls_retried": "calls_retried", "audits": "ledger_audits"}
    return {
        **{
            name: sum(run["totals"].get(total, 0) for run in runs) for name, total in totals.items()
        },
        "runs": [{key: run[key] for key in run.keys() - {"recoveries"}} for run in runs],
        "faults": healed,
    }


def summary(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Counts, and how long each fault took to heal."""
    yield "runs", str(len(figures["runs"]))
    yield "client calls", f"{figures['calls']}, {figures['calls_retried']} retried"
    yield "audits of the ledger", str(figures["audits"])
    for fault, times in sorted(figures["faults"].items()):
        healed = (f"{name} {middle_and_largest(times[what])} s" for what, name in HEALED.items())
        yield f"{fault}: {max(map(len, times.values()))}, median and most", "; ".join(healed)


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
