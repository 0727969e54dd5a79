"""The parts that benchmarks share: options, rounds, ratios, limits, tables, and the JSON file."""

import argparse
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
BASELINES = ROOT / "benchmarks" / "baselines"
MIB = 1 << 20

T = TypeVar("T")


def options_of(doc: str, baseline: str = "", **defaults: Any) -> argparse.ArgumentParser:
    """A parser described by the first line of a module's docstring.

    Args:
        doc: the docstring.
        baseline: the file in benchmarks/baselines that `--json` writes; no `--json` if empty.
        defaults: of the other options, each with its help if it is a pair. The default has the
            option's type, or is the type of an option that may be left out; one in a list means
            that the option takes several values, and False that it takes none.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, given in defaults.items():
        default, says = given if isinstance(given, tuple) else (given, None)
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true", help=says)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default, help=says)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default, help=says)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=says)
    if baseline:
        file = BASELINES / f"{baseline}.json"
        says = f"write the figures into this file, by default benchmarks/baselines/{file.name}"
        parser.add_argument("--json", type=Path, nargs="?", const=file, help=says)
    return parser


def machine() -> dict[str, Any]:
    """Time of the measurement, and the cores that it may use."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
    }


def write(file: Path | None, figures: Any, *, by_key: bool = False) -> None:
    """Write figures as JSON, if there is a file.

    Args:
        file: from `--json`.
        figures: a dict or list of them.
        by_key: a line for each key, not for each figure.
    """
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1)
    if by_key:
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in figures.items())
        text = "{\n" + ",\n".join(lines) + "\n}"
    file.write_text(text + "\n")


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table as wide as it needs."""
    table = Table(*columns, title=title or None)
    for row in rows:
        table.add_row(*row)
    Console(width=170).print(table)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head, each line with its end."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def with_table(page: str, name: str, table: str) -> str:
    """The page with this table between its marks.

    Raises:
        ValueError: the page has no place, or several, for it.
    """
    place = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
    filled, places = place.subn(lambda mark: mark[1] + table + mark[2], page)
    if places != 1:
        raise ValueError(f"the page has {places} places for the table {name!r}, not one")
    return filled


def in_turn(ways: Sequence[T], round_: int) -> list[T]:
    """The ways in the order of a round: each goes first in one of them."""
    first = round_ % len(ways)
    return [*ways[first:], *ways[:first]]


def by_name(rounds: Sequence[Mapping[str, T]]) -> dict[str, list[T]]:
    """The figures of all rounds by name."""
    return {name: [one[name] for one in rounds] for name in rounds[0]}


def ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """Median over rounds of the ratio within a round, which load from elsewhere changes least."""
    return median(one / other for one, other in zip(above, below, strict=True))


def middle_and_largest(seconds: Sequence[float], *, none: str = "-") -> str:
    """Median and maximum."""
    return f"{median(seconds):.1f}, {max(seconds):.1f}" if seconds else none


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A limit of a figure.

    Attributes:
        limit: least value, or the largest one if `at_most`.
    """

    name: str
    found: float
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """The figure is within its limit."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit

    def __str__(self) -> str:
        verdict = "met   " if self.met else "MISSED"
        most = "most" if self.at_most else "least"
        return f"{verdict} {self.name}: {self.found:.3g} (at {most} {self.limit:g})"
