"""Cost of the router above plain vLLM: CPU and latency, on each way to it, beside peers.

    python -m benchmarks.router.overhead [--peers VENV] [--json]

vLLM's own server answers short chats and streams, directly and through each way, in turn and
several times over. Then engines that cost next to nothing hold hundreds and thousands of
streams open. CPU is that of all processes but the clients', less what they use when idle.
"""

import argparse
import math
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks.processes import Usage, since
from benchmarks.report import in_turn, options_of, ratio, show, write
from benchmarks.router.load import Load, put
from benchmarks.router.ways import PLAIN, SHIPPED, Engine, Way, mock_engines, real_engine, ways

CHAT_TOKENS, STREAM_TOKENS = 8, 128
IDLE_S = 3.0
CHATS = [
    Load(name=f"chat c{c}", concurrency=c, requests=n, tokens=CHAT_TOKENS, stream=False)
    for c, n in ((1, 60), (16, 768), (64, 1536))
]
STREAMS = [
    Load(name=f"stream c{c}", concurrency=c, requests=n, tokens=STREAM_TOKENS, stream=True)
    for c, n in ((1, 4), (16, 48), (64, 128))
]
OPEN = [
    Load(name=f"open {c}", concurrency=c, requests=c, tokens=16, stream=True) for c in (512, 2048)
]
CHAT_BAR_MS, TOKEN_BAR_MS, P50_BAR, RATE_BAR = 1.3, 0.05, 1.2, 0.75


Sample = dict[str, Any]
"""Figures of one load on one way: `cpu_ms` by process and per request, and latencies."""

Results = dict[str, dict[str, list[Sample]]]
"""Samples by load and way, one each round."""


def main() -> int:
    """Run everything and print the tables; 1 when a bar is missed."""
    parser = options_of(
        __doc__,
        "router_overhead",
        rounds=(3, "how often each way has its turn"),
        only=("", "leave out the ways that do not have this in their name"),
        peers=(Path, "a virtual environment with other routers"),
    )
    parser.add_argument("--engines", choices=("real", "mock"), help="leave out the others")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results: Results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.engines != "mock":
            with real_engine(folder) as engines:
                measure(folder, engines, CHATS + STREAMS, options, results)
        if options.engines != "real":
            with mock_engines(folder) as engines:
                measure(folder, engines, OPEN, options, results)
    _print(results)
    missed = _missed(results)
    for line in missed:
        print(f"missed: {line}")
    medians = {
        load: {way: _median(samples) for way, samples in sorted(by_way.items(), key=_place)}
        for load, by_way in results.items()
    }
    write(options.json, {"missed": missed, "medians": medians})
    return 1 if missed else 0


def measure(
    folder: Path,
    engines: Sequence[Engine],
    loads: Sequence[Load],
    options: argparse.Namespace,
    results: Results,
) -> None:
    """Put each load on each way in turn, so often as there are rounds."""
    model = "tiny_code" if engines[0][0].name == "vLLM" else "mock"
    with ways(folder, engines, model, options) as found:
        for way in found:  # connections, caches and compiled templates
            uvloop.run(put(replace(loads[-1], requests=8, concurrency=8), way.urls, model))
        idle = {way.name: _idle(way) for way in found}
        for number in range(options.rounds):
            for load in loads:
                for way in in_turn(found, number):
                    sample = _sample(way, load, model, idle[way.name])
                    results.setdefault(load.name, {}).setdefault(way.name, []).append(sample)


def _idle(way: Way) -> Usage:
    """CPU seconds per second when nobody asks."""
    before = way.usage()
    time.sleep(IDLE_S)
    return {name: used / IDLE_S for name, used in since(before, way.usage()).items()}


def _sample(way: Way, load: Load, model: str, idle: Usage) -> Sample:
    before = way.usage()
    outcome = uvloop.run(put(load, way.urls, model))
    by_process = {
        name: 1000 * (used - idle.get(name, 0.0) * outcome.wall_s) / load.requests
        for name, used in since(before, way.usage()).items()
    }
    for error in outcome.errors[:3]:
        print(f"{way.name}, {load.name}: {error}", file=sys.stderr)
    return {
        "cpu_ms": sum(by_process.values()),
        "cpu_ms_by_process": by_process,
        "requests_per_s": load.requests / outcome.wall_s,
        **outcome.figures(),
    }


def _median(samples: list[Sample]) -> Sample:
    """Figure by figure."""
    merged: Sample = {}
    for name, value in samples[0].items():
        values = [sample[name] for sample in samples if name in sample]
        if isinstance(value, dict):
            merged[name] = _median(values)
        else:
            merged[name] = max(values) if name == "errors" else round(median(values), 4)
    return merged


def _above_plain(results: Results, load: str, way: str) -> float:
    """Median over rounds of the CPU that a way needs more than plain vLLM in the same round."""
    pairs = zip(results[load][way], results[load][PLAIN], strict=True)
    return median(one["cpu_ms"] - plain["cpu_ms"] for one, plain in pairs)


def _ratio(results: Results, load: str, way: str, figure: str) -> float:
    """Over plain vLLM in the same round; not a number where nothing was answered."""
    above = (one.get(figure, math.nan) for one in results[load][way])
    return ratio(above, (plain[figure] for plain in results[load][PLAIN]))


def _missed(results: Results) -> list[str]:
    """The bars that the router does not reach as it is shipped."""
    chat, stream = CHATS[-1].name, STREAMS[-1].name
    missed = []
    if SHIPPED in results.get(chat, {}):
        for load, tokens, one, bar in (
            (chat, 1, "chat", CHAT_BAR_MS),
            (stream, STREAM_TOKENS, "token", TOKEN_BAR_MS),
        ):
            if (above := _above_plain(results, load, SHIPPED) / tokens) > bar:
                missed.append(f"{above:.3f} CPU-ms above plain vLLM a {one}; bar {bar}")
            if (rate := _ratio(results, load, SHIPPED, "requests_per_s")) < RATE_BAR:
                missed.append(f"{load}: {rate:.2f} of plain vLLM's requests/s; bar {RATE_BAR}")
        for load in (load.name for load in CHATS + STREAMS):
            if (times := _ratio(results, load, SHIPPED, "latencies_p50_ms")) > P50_BAR:
                missed.append(f"{load}: p50 {times:.2f} times plain vLLM's; bar {P50_BAR}")
    for load, by_way in results.items():
        if errors := sum(sample["errors"] for sample in by_way.get(SHIPPED, [])):
            missed.append(f"{load}: {errors:.0f} errors")
    return missed


def _place(row: tuple[str, list[Sample]]) -> tuple[bool, bool]:
    """The way that users get comes first, then plain vLLM."""
    return row[0] != SHIPPED, row[0] != PLAIN


def _print(results: Results) -> None:
    columns = ["way", "CPU-ms", "above plain", "by process", "p50 ms", "p99 ms", "p50 ratio"]
    columns += ["requests/s", "ratio", "gap p50 / p99", "errors"]
    for load in CHATS + STREAMS + OPEN:
        by_way = sorted(results.get(load.name, {}).items(), key=_place)
        rows = [[way, *_row(results, load.name, way, _median(found))] for way, found in by_way]
        if rows:
            show(
                columns, rows, title=f"{load.name}: {load.requests} answers of {load.tokens} tokens"
            )


def _row(results: Results, load: str, way: str, figures: Sample) -> list[str]:
    parts = sorted(figures["cpu_ms_by_process"].items(), key=lambda item: -item[1])
    gaps = [figures.get(f"gaps_{name}_ms") for name in ("p50", "p99")]
    return [
        f"{figures['cpu_ms']:.2f}",
        f"{_above_plain(results, load, way):+.2f}",
        ", ".join(f"{name} {ms:.2f}" for name, ms in parts if abs(ms) >= 0.01),
        f"{figures.get('latencies_p50_ms', 0):.1f}",
        f"{figures.get('latencies_p99_ms', 0):.1f}",
        f"{_ratio(results, load, way, 'latencies_p50_ms'):.2f}",
        f"{figures['requests_per_s']:.1f}",
        f"{_ratio(results, load, way, 'requests_per_s'):.2f}",
        "" if None in gaps else " / ".join(f"{gap:.2f}" for gap in gaps if gap is not None),
        f"{figures['errors']:.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
