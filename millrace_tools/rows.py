"""Rows of text in aligned columns."""

from collections.abc import Sequence

from rich.console import Console


def show_rows(rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print the rows, the first one being the heading. Lines are as long as their cells ask
    for, however narrow the terminal: an id that is broken in two cannot be copied."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print("  ".join(cells).rstrip(), markup=False, highlight=False, soft_wrap=True)
