"""Train steps of ranks that share one long row, beside one rank that has it alone.

Each rank is a process; on few cores wall seconds say how many of them work at a time, and CPU
seconds of all ranks what sharing costs beside the work itself.
"""

import argparse
import random
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.models import make_model
from benchmarks.report import options_of, show
from benchmarks.train_step.batch import GROUP_SIZE, VOCABULARY, Answer, answer_calls
from benchmarks.train_step.ours import Steps
from benchmarks.train_step.way import Way
from services.trainer.config import MIB, TrainerConfig
from services.trainer.rank.process_group import open_store

SHAPE = (128, 384, 2, 8, 8, 16)
"""Eight heads, so that up to eight ranks can share a row."""
SHORT = 8
"""Tokens of the answers that stand beside the long one in its group."""


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of both sides, which take turns; the first round is dropped."""
    make_model(folder, SHAPE, vocabulary=VOCABULARY)
    ranks = options.context_parallel
    store = open_store("127.0.0.1"), open_store("127.0.0.1")
    sides = {
        "alone": _ranks(folder, 1, store[0].port, options),
        "shared": _ranks(folder, ranks, store[1].port, options),
    }
    try:
        for ways in sides.values():
            for way in ways:
                way.ready()
        rounds = [_round(sides) for _ in range(options.rounds + 1)][1:]
    finally:
        for way in (way for ways in sides.values() for way in ways):
            way.close()
    seconds = {
        side: {name: [one[side][name] for one in rounds] for name in rounds[0][side]}
        for side in sides
    }
    return {
        "ranks": ranks,
        "tokens": options.row_tokens,
        "seconds_and_mib": seconds,
        "ratios": {
            name: median(
                one / other
                for one, other in zip(seconds["alone"][name], seconds["shared"][name], strict=True)
            )
            for name in ("wall", "cpu", "peak_mib")
        },
    }


def _ranks(folder: Path, count: int, port: int, options: argparse.Namespace) -> list[Way]:
    python = Path(sys.executable)
    common: list[Any] = ["--ranks", count, "--port", port]
    common += ["--row-tokens", options.row_tokens, "--threads", options.threads]
    return [Way(python, "long_row", folder, "--rank", rank, *common) for rank in range(count)]


def _round(sides: dict[str, list[Way]]) -> dict[str, dict[str, float]]:
    return {name: _step(ways) for name, ways in sides.items()}


def _step(ways: list[Way]) -> dict[str, float]:
    for way in ways:
        way.begin("step")
    found = [way.found() for way in ways]
    return {
        "wall": max(one["wall"] for one in found),
        "cpu": sum(one["cpu"] for one in found),
        "peak_mib": fmean(one["peak_mib"] for one in found),
    }


def print_sides(result: dict[str, Any]) -> None:
    """Print seconds and memory of both, and their ratios."""
    show(
        ("ranks", "s", "CPU s", "MiB a rank above the start"),
        (
            [side, *(f"{median(figures[name]):.2f}" for name in ("wall", "cpu", "peak_mib"))]
            for side, figures in result["seconds_and_mib"].items()
        ),
        title=f"A row of {result['tokens']:,} tokens, alone and shared by {result['ranks']} ranks",
    )
    ratios = result["ratios"]
    print(
        f"One rank's over those of {result['ranks']}: wall {ratios['wall']:.2f}, CPU of all ranks "
        f"{ratios['cpu']:.2f}, memory of a rank {ratios['peak_mib']:.2f}"
    )


def long_row(tokens: int) -> list[Answer]:
    """A group of one long answer and short ones."""
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(2, VOCABULARY) for _ in range(count)]

    prompt = ids(SHORT)
    lengths = [tokens - SHORT] + [SHORT] * (GROUP_SIZE - 1)
    return [Answer(prompt, ids(length), draw.random()) for length in lengths]


def main() -> None:
    """Be one rank: take a train step for every line on stdin."""
    parser = options_of("One rank", rank=0, ranks=1, port=0, threads=1, row_tokens=8192)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    config = TrainerConfig(
        model=str(options.folder),
        world_size=options.ranks,
        context_parallel=options.ranks,
        threads_per_rank=options.threads,
        activation_checkpointing=True,
        micro_batch_tokens=2 * options.row_tokens,
        canary_sequences=0,
    )
    store = TCPStore("127.0.0.1", options.port, is_master=False, wait_for_workers=False)
    steps = Steps(options.folder, long_row(options.row_tokens), config, options.rank, store)
    steps.start()
    memory = psutil.Process().memory_info().rss

    def step() -> dict[str, float]:
        return steps.take() | {"peak_mib": (_peak_bytes() - memory) / MIB}

    answer_calls({"step": step})


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    main()
