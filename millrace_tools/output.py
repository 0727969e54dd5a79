"""Lines and tables of text that can be copied: nothing wraps, and nothing is markup."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rich.console import Console

from services.protocol.errors import InvalidInput

Item = TypeVar("Item")
_MAX_VALUE = 120  # characters


def print_line(line: str, console: Console, style: str | None = None) -> None:
    """Print a line as it is, however narrow the terminal."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_rows(rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print rows in aligned columns, the first one being the heading."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print_line("  ".join(cells).rstrip(), console)


def print_items(
    items: Sequence[Item], columns: Mapping[str, Callable[[Item], object]], console: Console
) -> None:
    """Print a row per item; `columns` has the value of each column."""
    cells = [[shown(value(item)) for value in columns.values()] for item in items]
    print_rows([list(columns), *cells], console)


def shown(value: object) -> str:
    """A value in a cell: `-` for none, two digits of a float, `yes` or `no`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def print_problem(problem: InvalidInput) -> None:
    """Print a refusal on standard error: field, value and fix."""
    value = repr(problem.value)
    if len(value) > _MAX_VALUE:
        value = value[: _MAX_VALUE - 3] + "..."
    error_console().print(f"error: {problem.field}: {value} -> {problem.fix}")


def error_console() -> Console:
    """Standard error, for lines that are printed as they are."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
