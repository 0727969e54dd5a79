"""`millrace ledger`: the balance of a run's ledger, also of one that crashed."""

import argparse
from pathlib import Path

from rich.console import Console

from millrace_tools.command import FAILED, Commands, declare
from millrace_tools.output import print_line, print_rows
from services.ledger.ledger import ledger_of


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(commands, "ledger", ledger, "show whether a run's ledger balances")
    parser.add_argument("run_dir", help="such as runs/tiny_code-...")


def ledger(arguments: argparse.Namespace, console: Console) -> int:
    """Show the balance of a run; status 1 if the sides differ."""
    return 0 if show_balance(arguments.run_dir, console) else FAILED


def show_balance(run_dir: str | Path, console: Console) -> bool:
    """Print both sides of the ledger, in groups and in tokens; returns whether they agree.

    Raises:
        InvalidInput: the directory has no ledger that can be read.
    """
    with ledger_of(run_dir) as copy:
        groups, tokens = copy.counts().model_dump(), copy.token_counts().model_dump()
        wasted, off = copy.wasted(), copy.imbalance()
    rows = [("", "groups", "tokens")]
    rows += [(name.replace("_", " "), f"{groups[name]:,}", f"{tokens[name]:,}") for name in groups]
    print_rows(rows, console)
    lost, sampled = sum(wasted.values()), tokens["admitted"]
    share = f" ({lost / sampled:.1%})" if sampled else ""
    print_line(f"\n{lost:,} of {sampled:,} sampled tokens trained nothing{share}", console)
    if wasted:
        print_rows([("cause", "tokens"), *((n, f"{t:,}") for n, t in wasted.items())], console)
    verdict = "balances" if not off else f"DOES NOT BALANCE: the sides differ by {off:,}"
    print_line(f"\nThe ledger {verdict}.", console)
    return not off
