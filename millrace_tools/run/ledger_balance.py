"""The balance of a run's ledger, and what became of the tokens that trained nothing."""

from pathlib import Path

from rich.console import Console

from millrace_tools.rows import show_rows
from services.ledger.ledger import ledger_of


def show_balance(run_dir: str | Path, console: Console) -> bool:
    """Print both sides of the ledger, in groups and in tokens; returns whether they agree.

    Raises:
        InvalidInput: the directory has no ledger that can be read.
    """
    with ledger_of(run_dir) as ledger:
        groups, tokens = ledger.counts().model_dump(), ledger.token_counts().model_dump()
        wasted, off = ledger.wasted(), ledger.imbalance()
    rows = [("", "groups", "tokens")]
    rows += [(name.replace("_", " "), f"{groups[name]:,}", f"{tokens[name]:,}") for name in groups]
    show_rows(rows, console)
    lost, sampled = sum(wasted.values()), tokens["admitted"]
    share = f" ({lost / sampled:.1%})" if sampled else ""
    _say(f"\n{lost:,} of {sampled:,} sampled tokens trained nothing{share}", console)
    if wasted:
        show_rows([("cause", "tokens"), *((n, f"{t:,}") for n, t in wasted.items())], console)
    verdict = "balances" if not off else f"DOES NOT BALANCE: the sides differ by {off:,}"
    _say(f"\nThe ledger {verdict}.", console)
    return not off


def _say(line: str, console: Console) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
