"""Weight delivery under load while things die, for as long as you like.

    python -m benchmarks.soak.weights --minutes 30 --push-every 2 --fault-every 20

Real vLLM engines, a real two-rank FSDP2 trainer and a real bus, in processes of their own, as
in tests/chaos, with a model small enough for two cores. New weights are pushed all the time,
requests stream from every leased replica, and one thing after another is killed, frozen,
corrupted or added (`faults.py`). Exit code 1 and the reasons if anything hangs, a token
comes under a wrong label or with a logprob that its version does not give, a request ends
otherwise than it should, or something leaks. The logs of the parts go to `--log`.
"""

import argparse
import asyncio
import os
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.report import middle_and_largest, options_of
from benchmarks.soak.delivery import Delivery
from benchmarks.soak.engine import Findings, conclude, redirect_output
from benchmarks.soak.faults import Faults
from benchmarks.soak.load import EXACT, Load
from benchmarks.soak.scene_census import SceneCensus
from millrace_tools.cluster.leftovers import adopt_orphans, end_descendants
from tests.chaos.answers import Judge
from tests.chaos.opening import make_model, opened

PRIMITIVES = 64
"""Compiled kernels that oneDNN keeps in an engine. Prompts of any length are computed anew at
each commit, and its default of 1024 takes half an hour and 200 MiB to fill: like a leak."""


def main() -> None:
    """Soak, print, and write the figures if asked."""
    parser = options_of(
        __doc__,
        "soak_weights",
        minutes=(30.0, "until the last fault"),
        push_every=(2.0, "seconds"),
        fault_every=(20.0, "seconds"),
        seed=(0, "of the order of faults"),
        replicas=(2, "2 or more"),
        silence=(60.0, "s a leased replica may go without a commit"),
        log=(Path, "file for the output of the parts"),
    )
    options = parser.parse_args()
    if options.replicas < 2:
        parser.error(f"--replicas: {options.replicas} -> use 2 or more, one of them always lives")
    log = options.log or Path(tempfile.gettempdir()) / f"soak-weights-{os.getpid()}.log"
    redirect_output(log)
    print(f"logs: {log}")
    torch.set_num_threads(1)
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = str(PRIMITIVES)
    adopt_orphans()
    findings = Findings()
    try:
        seconds, census, figures = asyncio.run(soak(options, findings))
    finally:
        end_descendants(grace_s=0.0)
    conclude(options, seconds, census, findings.problems, figures, summary(figures))


async def soak(
    options: argparse.Namespace, findings: Findings
) -> tuple[float, SceneCensus, dict[str, Any]]:
    """Everything from the first process to the last; seconds that it took, and the figures."""
    with tempfile.TemporaryDirectory(prefix="soak-weights-") as folder:
        model = make_model(Path(folder) / "model")
        weights = Path(folder) / "weights"
        weights.mkdir()
        judge = Judge(model, weights)
        async with opened(model, weights, replicas=options.replicas) as scene:
            load = Load(scene, judge, findings)
            delivery = Delivery(scene, load, judge, findings, silence_s=options.silence)
            faults, census = Faults(scene, load, options.seed), SceneCensus(scene)
            healed: dict[str, list[float]] = defaultdict(list)
            began = time.monotonic()
            try:
                async with asyncio.TaskGroup() as group:
                    pushing = group.create_task(delivery.push(options.push_every))
                    watching = group.create_task(delivery.watch())
                    group.create_task(load.judge())
                    await scene.until_served(await delivery.made_after(), list(scene.replicas))
                    async for kind, seconds in fault_after_fault(options, faults, delivery, census):
                        healed[kind].append(round(seconds, 1))
                        when = f"{time.monotonic() - began:7.1f} s"
                        print(f"{when}  {kind}: whole again after {seconds:.1f} s")
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
    return seconds, census, _figures(findings, load, delivery, healed, census)


async def fault_after_fault(
    options: argparse.Namespace, faults: Faults, delivery: Delivery, census: SceneCensus
) -> AsyncIterator[tuple[str, float]]:
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


def _figures(
    findings: Findings,
    load: Load,
    delivery: Delivery,
    healed: dict[str, list[float]],
    census: SceneCensus,
) -> dict[str, Any]:
    ended = sum(load.endings.values())
    if load.started != ended and "stopped" not in findings.counts:
        findings.wrong("request", f"{load.started} were sent, {ended} have a status")
    if not load.judged:
        findings.wrong("logprob", "no answer was compared")
    return {
        "breaches": dict(findings.counts),
        "pushes": len(delivery.published),
        "pushes_skipped": delivery.skipped,
        "commits": len(delivery.reached),
        "reached_s": [median(delivery.reached or [0]), max(delivery.reached or [0])],
        "silence_s": delivery.silence,
        "buses": len(delivery.bus_ids),
        "requests": load.started,
        "endings": {str(ending): count for ending, count in load.endings.items()},
        "tokens": load.tokens,
        "versions_in_one_answer": load.updates,
        "judged": sum(load.judged.values()),
        "replicas_judged": len(load.judged),
        "gap": load.gap,
        "faults": healed,
        "census": census.series(),
    }


def summary(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Pushes, requests, and how long each fault took to heal."""
    middle, largest = figures["reached_s"]
    skipped = figures["pushes_skipped"]
    yield "pushes", f"{figures['pushes']}, and {skipped} skipped while one was not over"
    reached = f"median {middle:.2f} s after the push, most {largest:.1f} s"
    yield "commits seen on leased replicas", f"{figures['commits']}, {reached}"
    yield "longest without one", f"{figures['silence_s']:.1f} s"
    yield "requests", ", ".join(f"{count} {name}" for name, count in figures["endings"].items())
    versions = figures["versions_in_one_answer"]
    yield "tokens", f"{figures['tokens']}, up to {versions} versions in one answer"
    judged = f"{figures['judged']} of {figures['replicas_judged']} replicas"
    yield "answers judged", f"{judged}, at most {figures['gap']:.1g} nats off ({EXACT:g} allowed)"
    yield "buses", str(figures["buses"])
    for kind, seconds in sorted(figures["faults"].items()):
        yield f"{kind}: {len(seconds)}, median and most", f"{middle_and_largest(seconds)} s"


if __name__ == "__main__":
    main()
