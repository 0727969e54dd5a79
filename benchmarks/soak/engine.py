"""The end of every soak: its figures are printed and written, and problems are its exit code."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.report import machine, show, write
from benchmarks.soak.census import HELD, Census

SHOWN_PROCESSES, SHOWN_OF_A_KIND = 24, 3


class Findings:
    """Breaches of the rules; the first of each kind in words, all of them in numbers."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    def wrong(self, kind: str, detail: str) -> None:
        """Note one breach."""
        self.counts[kind] += 1
        if self.counts[kind] <= SHOWN_OF_A_KIND:
            self.problems.append(f"{kind}: {detail}")


def conclude(
    options: argparse.Namespace,
    seconds: float,
    census: Census,
    problems: Sequence[str],
    found: Mapping[str, Any],
    rows: Iterable[Sequence[str]],
) -> NoReturn:
    """Print and write the figures; exit with 1 if there is a problem.

    Args:
        options: with `json`.
        seconds: that it took.
        census: of its processes.
        problems: besides those that the census finds.
        found: further figures, by name.
        rows: of the summary, name and figure.
    """
    chosen = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    figures = {
        **machine(),
        "options": chosen,
        "seconds": round(seconds, 1),
        "problems": [*problems, *census.problems()],
        **found,
        "growth_per_hour": census.growth(),
        "minutes": census.totals,
    }
    show(("figure", "value"), rows, title=f"{seconds / 60:.1f} minutes")
    oldest = sorted(figures["growth_per_hour"], key=lambda one: -one["minutes"])[:SHOWN_PROCESSES]
    growth = (
        [one["name"], f"{one['minutes']:g}", *(f"{one[what]:g}" for what in HELD)] for one in oldest
    )
    show(("process", "minutes", "MiB/h", "fds/h", "threads/h"), growth, title="growth")
    for total in figures["minutes"][:1] + figures["minutes"][-1:]:
        print(total)
    for problem in figures["problems"]:
        print(f"WRONG  {problem}")
    print("wrong" if figures["problems"] else "nothing hung, nothing wrong, no leak")
    write(options.json, figures, by_key=True)
    sys.exit(1 if figures["problems"] else 0)


def redirect_output(log: Path) -> None:
    """Send the output of this process, and of all that it starts from now on, to a file.

    Python's own `print` keeps writing where it did.
    """
    sys.stdout = open(os.dup(1), "w", buffering=1)  # noqa: SIM115
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
