"""Weight delivery under load while things die, for as long as you like.

    python -m benchmarks.soak.weights --minutes 30 --push-every 2 --fault-every 20

Real vLLM engines, a real two-rank FSDP2 trainer and a real bus, in processes of their own, as
in tests/chaos, with a model small enough for two cores. New weights are pushed all the time,
requests stream from every leased replica, and one thing after another is killed, frozen,
corrupted or added (`soak_faults.py`). Exit code 1 and the reasons if anything hangs, a token
comes under a wrong label or with a logprob that its version does not give, a request ends
otherwise than it should, or something leaks. What the parts log goes to `--log`.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.soak.census import TOLERANCES, Census
from benchmarks.soak.delivery import Delivery
from benchmarks.soak.faults import Faults, Healed
from benchmarks.soak.load import EXACT, Findings, Load
from millrace_tools.cluster.leftovers import adopt_orphans, end_descendants
from tests.chaos.answers import Judge
from tests.chaos.opening import make_model, opened

PRIMITIVES = 64
"""Compiled kernels that oneDNN keeps in an engine. Prompts of any length are computed anew at
each commit, and its default of 1024 takes half an hour and 200 MiB to fill: like a leak."""

BASELINE = Path(__file__).parents[1] / "baselines" / "soak_weights.json"


def main() -> None:
    """Soak, print, and write the figures if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="until the last fault")
    parser.add_argument("--push-every", type=float, default=2.0, help="seconds")
    parser.add_argument("--fault-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults")
    parser.add_argument("--replicas", type=int, default=2, help="2 or more")
    parser.add_argument(
        "--silence", type=float, default=60.0, help="s a leased replica may go without a commit"
    )
    parser.add_argument("--log", type=Path, help="where what the parts log goes")
    parser.add_argument("--json", type=Path, nargs="?", const=BASELINE, help="write figures here")
    options = parser.parse_args()
    if options.replicas < 2:
        parser.error(f"--replicas: {options.replicas} -> use 2 or more, one of them always lives")
    console = Console(width=110, file=os.fdopen(os.dup(1), "w"))
    log = options.log or Path(tempfile.gettempdir()) / f"soak-{os.getpid()}.log"
    _log_to(log)
    console.print(f"logs: {log}")
    torch.set_num_threads(1)
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = str(PRIMITIVES)
    adopt_orphans()
    try:
        result = asyncio.run(soak(options, console))
    finally:
        end_descendants(grace_s=0.0)
    show(result, console)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
        options.json.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.exit(1 if result["problems"] else 0)


async def soak(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Everything from the first process to the last; the figures."""
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        model = make_model(Path(folder) / "model")
        weights = Path(folder) / "weights"
        weights.mkdir()
        judge = Judge(model, weights)
        async with opened(model, weights, replicas=options.replicas) as scene:
            load = Load(scene, judge, findings)
            delivery = Delivery(scene, load, judge, findings, silence_s=options.silence)
            faults, census = Faults(scene, load, options.seed), Census(scene)
            healed: list[Healed] = []
            began = time.monotonic()
            try:
                async with asyncio.TaskGroup() as group:
                    pushing = group.create_task(delivery.push(options.push_every))
                    watching = group.create_task(delivery.watch())
                    group.create_task(load.judge())
                    await scene.until_served(await delivery.made_after(), list(scene.replicas))
                    async for one in fault_after_fault(options, faults, delivery, census):
                        healed.append(one)
                        when = f"{time.monotonic() - began:7.1f} s"
                        console.print(f"{when}  {one.kind}: whole again after {one.seconds:.1f} s")
                    await load.finish()
                    pushing.cancel()
                    watching.cancel()
            # Edge of the soak: whatever ended it is a finding, and what is known is shown.
            except* Exception as failed:  # noqa: BLE001
                traceback.print_exception(failed)
                for error in failed.exceptions:
                    findings.wrong("stopped", f"{type(error).__name__}: {error}")
            finally:
                await load.close()
            seconds = time.monotonic() - began
        if left := await census.left():
            findings.wrong("leak", f"processes {left} outlive everything")
    return figures(options, seconds, findings, load, delivery, healed, census)


async def fault_after_fault(
    options: argparse.Namespace, faults: Faults, delivery: Delivery, census: Census
) -> AsyncIterator[Healed]:
    """Faults at their times, or as soon as the one before has healed."""
    due = started = time.monotonic()
    while True:
        due = max(due + options.fault_every, time.monotonic())
        if due > started + 60 * options.minutes:
            break
        await asyncio.sleep(due - time.monotonic())
        census.take()
        yield await faults.next(delivery.made_after)
    await asyncio.sleep(max(0.0, started + 60 * options.minutes - time.monotonic()))
    census.take()


def figures(
    options: argparse.Namespace,
    seconds: float,
    findings: Findings,
    load: Load,
    delivery: Delivery,
    healed: list[Healed],
    census: Census,
) -> dict[str, Any]:
    """All that was found out."""
    ended = sum(load.endings.values())
    if load.started != ended and "stopped" not in findings.counts:
        findings.wrong("request", f"{load.started} were sent, {ended} have a status")
    if not load.judged:
        findings.wrong("logprob", "no answer was compared")
    by_kind = defaultdict(list)
    for one in healed:
        by_kind[one.kind].append(round(one.seconds, 1))
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "options": {
            key: value for key, value in vars(options).items() if key not in ("log", "json")
        },
        "seconds": seconds,
        "problems": [*findings.problems, *census.problems()],
        "breaches": dict(findings.counts),
        "pushes": len(delivery.published),
        "pushes_skipped": delivery.skipped,
        "commits": len(delivery.reached),
        "reached_s": [statistics.median(delivery.reached or [0]), max(delivery.reached or [0])],
        "silence_s": delivery.silence,
        "buses": len(delivery.bus_ids),
        "requests": load.started,
        "endings": {str(ending): count for ending, count in load.endings.items()},
        "tokens": load.tokens,
        "versions_in_one_answer": load.updates,
        "judged": sum(load.judged.values()),
        "replicas_judged": len(load.judged),
        "gap": load.gap,
        "faults": by_kind,
        "processes": census.processes,
        "growth": census.growth(),
        "census": census.series(),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """The summary, and the reasons if something was wrong."""
    table = Table("what", "figure", title=f"{result['seconds'] / 60:.1f} minutes")
    median, most = result["reached_s"]
    skipped = result["pushes_skipped"]
    rows = {
        "pushes": f"{result['pushes']}, and {skipped} skipped while one was not over",
        "commits seen on leased replicas": f"{result['commits']}, median {median:.2f} s after the"
        f" push, most {most:.1f} s",
        "longest without one": f"{result['silence_s']:.1f} s",
        "requests": ", ".join(f"{count} {name}" for name, count in result["endings"].items()),
        "tokens": f"{result['tokens']}, up to {result['versions_in_one_answer']} versions in one"
        " answer",
        "answers judged": f"{result['judged']} of {result['replicas_judged']} replicas, at most"
        f" {result['gap']:.1g} nats off ({EXACT:g} allowed)",
        "buses": str(result["buses"]),
    }
    for kind, seconds in sorted(result["faults"].items()):
        healed = f"median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s"
        rows[f"{kind}: {len(seconds)}"] = f"whole again after {healed}"
    for name, figure in rows.items():
        table.add_row(name, figure)
    console.print(table)
    grown = Table("process", "minutes", *TOLERANCES, title="means of the first and last third")
    for row in sorted(result["growth"], key=lambda one: -one["minutes"])[:16]:
        cells = [f"{row[what][0]:g} -> {row[what][1]:g}" for what in TOLERANCES]
        grown.add_row(row["name"], f"{row['minutes']:.1f}", *cells)
    console.print(grown)
    for problem in result["problems"]:
        console.print(f"WRONG  {problem}", markup=False)
    console.print("wrong" if result["problems"] else "nothing hung, nothing wrong, no leak")


def _log_to(path: Path) -> None:
    """This process's own output and that of all it starts."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)


if __name__ == "__main__":
    main()
