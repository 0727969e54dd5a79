"""A train step beside TRL's and beside the bare passes of the same tokens, in one run.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install trl==1.16.0
    python -m benchmarks.train_step --peers /tmp/peers
    python -m benchmarks.train_step --context-parallel 4       # and a row that four ranks share

The same random Qwen3 of 1.4M parameters, the same 32 answers of uneven length, the same number
of threads: by default one, as a rank has (`threads_per_rank`). Ways take turns, one at a time;
a ratio is taken within a round, and its median and range over rounds are printed, of wall
seconds and of CPU seconds, which other programs on the machine disturb less. The first round is
dropped. Ours is everything that a rank does in a train step, the planning, the update, the
diagnostics and the snapshot for the weight bus included. Bare is nothing but forward and
backward of micro-batches that were laid out before: the same tokens, packed without padding and
attended to by the same kernel; `padded` is the same as most people have it. Steps with `offload`
stand beside the same step without, those of a mixture of experts beside bare passes of that
model. TRL pads; it needs torch and transformers as Millrace has them (it ran with 2.13.0+cpu and
5.19.0).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.report import Bar, by_name, machine, options_of, show, write
from benchmarks.train_step import batch, long_row
from benchmarks.train_step.way import Way

OFFLOADS = ("optimizer", "all")
EXPERTS = 16, 4
"""Of each layer of the mixture, and how many a token meets: as many weights as the dense one's."""
BARS = {"behaviour": 0.95, "proximal": 0.9, "trl": 1.0}


def main() -> None:
    """Measure, print, and write the figures if asked."""
    parser = options_of(
        __doc__,
        "train_step",
        threads=(1, "of each way"),
        rounds=9,
        peers=(Path, "a virtual environment with TRL"),
        context_parallel=(0, "also: so many ranks share one long row"),
        row_tokens=(8192, "of the long row"),
    )
    options = parser.parse_args()
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # as ranks have it; of every way
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options)
    print_ways(result)
    if options.context_parallel:
        with tempfile.TemporaryDirectory() as folder:
            result["long_row"] = long_row.measure(Path(folder), options)
        long_row.print_sides(result["long_row"])
    write(options.json, result)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; every list holds wall or CPU seconds, a figure a round."""
    batch.make(folder)
    answers = batch.read(folder)
    common = ("--threads", options.threads)
    here = Path(sys.executable)
    ours = Way(here, "ours", folder, *common)
    (folder / "experts").mkdir()
    batch.make(folder / "experts", experts=EXPERTS)
    others = {"experts": Way(here, "ours", folder / "experts", *common)}
    for kind in OFFLOADS:
        others[f"offload: {kind}"] = Way(here, "ours", folder, *common, "--offload", kind)
    peer = None
    if options.peers:
        python = options.peers / "bin" / "python"
        peer = Way(python, "peer", folder, *common, "--rounds", options.rounds + 2)
    ways = [one for one in (ours, *others.values(), peer) if one is not None]
    for way in ways:
        way.ready()
    try:
        rounds_taken = [one_round(ours, others, peer) for _ in range(options.rounds + 1)][1:]
        memory = ours.ask("memory")
    finally:
        for way in ways:
            way.close()
    taken = by_name(rounds_taken)
    seconds = {
        clock: {name: [one[clock] for one in found] for name, found in taken.items()}
        for clock in ("wall", "cpu")
    }
    return {
        **machine(),
        "threads": options.threads,
        "answers": len(answers),
        "tokens": sum(len(one.prompt) + len(one.response) for one in answers),
        "seconds": seconds,
        "scoring_peak_mib": memory,
        "ratios": {clock: ratios(of_clock) for clock, of_clock in seconds.items()},
        "bars": BARS,
    }


def one_round(ours: Way, others: dict[str, Way], peer: Way | None) -> dict[str, dict[str, float]]:
    """Every way once, the yardstick before and after ours."""
    taken = {"bare": ours.ask("bare"), "bare padded": ours.ask("bare padded")}
    for name in ("behaviour", "proximal"):
        taken[name] = second_step(ours, name)
        taken[f"bare, {name}"] = ours.ask("bare")
    taken["bare forward"] = ours.ask("bare forward")
    for name, way in others.items():
        taken[name] = second_step(way, "behaviour")
    taken["bare, experts"] = others["experts"].ask("bare")
    if peer is not None:
        taken["trl"] = peer.ask("step")
    return taken


def second_step(way: Way, anchor: str) -> dict[str, float]:
    """Of a run; the first one makes the optimizer's moments."""
    way.ask(f"begin {anchor}")
    way.ask("step")
    found: dict[str, float] = way.ask("step")
    return found


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Over rounds; the second minibatch of two needs a proximal pass of its own."""

    def spread(above: list[float], below: list[float]) -> dict[str, float]:
        several = [a / b for a, b in zip(above, below, strict=True)]
        return {"median": median(several), "low": min(several), "high": max(several)}

    both = [
        bare + half / 2
        for bare, half in zip(seconds["bare, proximal"], seconds["bare forward"], strict=True)
    ]
    around = [fmean(one) for one in zip(seconds["bare"], seconds["bare, behaviour"], strict=True)]
    found = {
        "behaviour": spread(around, seconds["behaviour"]),
        "proximal": spread(both, seconds["proximal"]),
        "padded": spread(seconds["bare padded"], seconds["behaviour"]),
        "experts": spread(seconds["bare, experts"], seconds["experts"]),
    }
    for name in (f"offload: {kind}" for kind in OFFLOADS):
        found[name] = spread(seconds["behaviour"], seconds[name])
    if "trl" in seconds:
        found["trl"] = spread(seconds["trl"], seconds["behaviour"])
    return found


def print_ways(result: dict[str, Any]) -> None:
    """Print tokens a second and their ratios to the yardsticks."""
    wall, cpu = (result["seconds"][clock] for clock in ("wall", "cpu"))
    middle = {name: (median(wall[name]), median(cpu[name])) for name in wall}
    show(
        ("way", "ms", "CPU ms", "tokens/s"),
        (
            [name, f"{1e3 * real:.0f}", f"{1e3 * busy:.0f}", f"{result['tokens'] / real:,.0f}"]
            for name, (real, busy) in middle.items()
        ),
        title=f"{result['tokens']} tokens in {result['answers']} answers",
    )
    for clock, found in result["ratios"].items():
        for name, ratio in found.items():
            text = f"{clock}, {name}: speed over its yardstick's"
            bar = Bar(name=text, found=ratio["median"], limit=BARS.get(name, 0.0))
            print(f"{bar}, {ratio['low']:.3f} to {ratio['high']:.3f}")
    print("Peak MiB of scoring 2,048 tokens of 32,768:", result["scoring_peak_mib"])


if __name__ == "__main__":
    main()
