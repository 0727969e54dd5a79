"""`millrace ledger`: the balance of a run's ledger, also of a run that crashed."""

import argparse

from rich.console import Console

from millrace_tools.command import FAILED, RUN_DIR, command
from millrace_tools.output import print_line, print_rows
from services.ledger.ledger import ledger_of


@command("ledger", RUN_DIR)
def ledger(arguments: argparse.Namespace, console: Console) -> int:
    """Show whether a run's ledger balances.

    Prints both sides in groups and in tokens; status 1 if they differ.

    Raises:
        InvalidInput: the directory has no ledger that can be read.
    """
    with ledger_of(arguments.run_dir) as copy:
        groups, tokens = copy.counts().model_dump(), copy.token_counts().model_dump()
        wasted, off = copy.wasted(), copy.imbalance()
        evaluated = copy.tokens_evaluated()
    rows = [("", "groups", "tokens")]
    rows += [(name.replace("_", " "), f"{groups[name]:,}", f"{tokens[name]:,}") for name in groups]
    print_rows(rows, console)
    lost, sampled = sum(wasted.values()), tokens["admitted"]
    share = f" ({lost / sampled:.1%})" if sampled else ""
    print_line(f"\n{lost:,} of {sampled:,} sampled tokens trained nothing{share}", console)
    if evaluated:
        print_line(f"{evaluated:,} more in held-out evaluations, outside the ledger", console)
    if wasted:
        print_rows([("cause", "tokens"), *((n, f"{t:,}") for n, t in wasted.items())], console)
    verdict = "balances" if not off else f"DOES NOT BALANCE: the sides differ by {off:,}"
    print_line(f"\nThe ledger {verdict}.", console)
    return FAILED if off else 0
