"""A train step beside TRL's and beside the bare passes of the same tokens, in one run.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install trl==1.16.0
    python -m benchmarks.train_step --peers /tmp/peers

The same random Qwen3 of 1.4M parameters, the same 32 answers of uneven length, the same number
of threads: by default one, as a rank has (`threads_per_rank`). Ways take turns, one at a time;
a ratio is taken within a round, and its median and range over rounds are printed, of wall
seconds and of CPU seconds, which other programs on the machine disturb less. The first round is
dropped. Ours is everything that a rank does in a train step, the planning, the update, the
diagnostics and the snapshot for the weight bus included. Bare is nothing but forward and
backward of micro-batches that were laid out before: the same tokens, packed without padding and
attended to by the same kernel; `padded` is the same as most people have it. TRL pads; it needs
torch and transformers as Millrace has them (it ran with 2.13.0+cpu and 5.19.0).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.train_step import batch

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / "benchmarks" / "baselines" / "train_step.json"
BARS = {"behaviour": 0.9, "proximal": 0.9, "trl": 1.0}


class Way:
    """A process that does one thing at a time when told."""

    def __init__(self, python: Path, module: str, *arguments: Any) -> None:
        command = [str(python), "-m", f"benchmarks.train_step.{module}", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def ask(self, what: str) -> Any:
        """What it measured."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"found"'):
                return json.loads(line)["found"]
        raise RuntimeError("a way ended early; its error is above")


def main() -> None:
    """Measure, print, and write the figures if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL")
    parser.add_argument("--groups", type=int, default=4, help="of 8 answers")
    parser.add_argument("--longest", type=int, default=320, help="tokens of an answer")
    parser.add_argument("--tokens", type=int, default=4096, help="of our micro-batches")
    parser.add_argument("--rows", type=int, default=16, help="of TRL's forward passes")
    parser.add_argument("--threads", type=int, default=1, help="of each way")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, nargs="?", const=BASELINE, help="write figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options)
    show(result, Console(width=110))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; every list holds wall or CPU seconds, a figure a round."""
    batch.make(folder, groups=options.groups, longest=options.longest, seed=0)
    answers = batch.read(folder)
    common = ("--threads", options.threads)
    ours = Way(Path(sys.executable), "ours", folder, *common, "--tokens", options.tokens)
    peer = None
    if options.peers:
        python = options.peers / "bin" / "python"
        rounds = ("--rounds", options.rounds + 2, "--rows", options.rows)
        peer = Way(python, "peer", folder, *common, *rounds)
    try:
        rounds_taken = [one_round(ours, peer) for _ in range(options.rounds + 1)][1:]
        memory = ours.ask("memory")
    finally:
        for way in filter(None, (ours, peer)):
            way.close()
    seconds = {
        clock: {name: [one[name][clock] for one in rounds_taken] for name in rounds_taken[0]}
        for clock in ("wall", "cpu")
    }
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "answers": len(answers),
        "tokens": sum(len(one.prompt) + len(one.response) for one in answers),
        "seconds": seconds,
        "scoring_peak_mib": memory,
        "ratios": {clock: ratios(of_clock) for clock, of_clock in seconds.items()},
        "bars": BARS,
    }


def one_round(ours: Way, peer: Way | None) -> dict[str, dict[str, float]]:
    """Every way once, the yardstick before and after ours."""
    taken = {"bare": ours.ask("bare"), "bare padded": ours.ask("bare padded")}
    for name in ("behaviour", "proximal"):
        ours.ask(f"begin {name}")
        ours.ask("step")  # the first one makes the optimizer's moments
        taken[name] = ours.ask("step")
        taken[f"bare, {name}"] = ours.ask("bare")
    taken["bare forward"] = ours.ask("bare forward")
    if peer is not None:
        taken["trl"] = peer.ask("step")
    return taken


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Over rounds; the second minibatch of two needs a proximal pass of its own."""

    def spread(above: list[float], below: list[float]) -> dict[str, float]:
        several = [a / b for a, b in zip(above, below, strict=True)]
        return {"median": statistics.median(several), "low": min(several), "high": max(several)}

    def mean(*several: list[float]) -> list[float]:
        return [statistics.fmean(one) for one in zip(*several, strict=True)]

    both = [
        bare + half / 2
        for bare, half in zip(seconds["bare, proximal"], seconds["bare forward"], strict=True)
    ]
    around = mean(seconds["bare"], seconds["bare, behaviour"])
    found = {
        "behaviour": spread(around, seconds["behaviour"]),
        "proximal": spread(both, seconds["proximal"]),
        "padded": spread(seconds["bare padded"], seconds["behaviour"]),
    }
    if "trl" in seconds:
        found["trl"] = spread(seconds["trl"], seconds["behaviour"])
    return found


def show(result: dict[str, Any], console: Console) -> None:
    """Print tokens a second and what they are of the yardsticks."""
    table = Table(title=f"{result['tokens']} tokens in {result['answers']} answers")
    for column in ("way", "ms", "CPU ms", "tokens/s"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, seconds in result["seconds"]["wall"].items():
        middle = statistics.median(seconds)
        cpu = statistics.median(result["seconds"]["cpu"][name])
        speed = f"{result['tokens'] / middle:,.0f}"
        table.add_row(name, f"{1e3 * middle:.0f}", f"{1e3 * cpu:.0f}", speed)
    console.print(table)
    for clock, found in result["ratios"].items():
        for name, ratio in found.items():
            bar, middle = BARS.get(name), ratio["median"]
            verdict = f"  (bar {bar:g}: {'met' if middle >= bar else 'MISSED'})" if bar else ""
            console.print(
                f"{clock}: {name} is {middle:.3f} times as fast as its yardstick, "
                f"{ratio['low']:.3f} to {ratio['high']:.3f}{verdict}",
                highlight=False,
            )
    console.print("Peak MiB of scoring 2,048 tokens of 32,768:", result["scoring_peak_mib"])


if __name__ == "__main__":
    main()
