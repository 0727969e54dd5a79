"""`millrace status`: all runs in a line each, or one of them in full."""

from rich.console import Console

from millrace_tools.rows import show_rows
from millrace_tools.run.run_view import evaluation_text, failures_text, idle_text, ledger_text
from services.protocol.run.orchestrator import RunStatus

_COLUMNS = ("run", "state", "step", "reward", "held-out", "seconds")


def show_runs(runs: list[RunStatus], console: Console) -> None:
    """Print a line per run."""
    if not runs:
        console.print("No runs yet.")
        return
    rows = [_COLUMNS, *(_row(run) for run in runs)]
    show_rows(rows, console)


def _row(run: RunStatus) -> tuple[str, ...]:
    rates = (_shown(run.reward), _shown(run.heldout_pass_rate))
    return (run.run_id, run.state, f"{run.step}/{run.steps}", *rates, f"{run.elapsed_s:.0f}")


def show_run(status: RunStatus, console: Console) -> None:
    """Print everything the orchestrator says of one run but its summary."""
    for name, value in status.model_dump(mode="json", exclude={"summary"}).items():
        shown = _shown(value)
        if name == "ledger":
            shown = ledger_text(status.ledger)
        elif name == "evaluations":
            for one in status.evaluations:
                line = f"{one.name:18} {evaluation_text(one)}  after step {one.step}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            continue
        elif name == "idle":
            sides = ((side, idle_text(causes)) for side, causes in status.idle.items())
            shown = "; ".join(f"{side} {text}" for side, text in sides if text) or "-"
        elif name == "failures":
            shown = failures_text(status.failures) or "-"
        console.print(f"{name:18} {shown}", markup=False, highlight=False, soft_wrap=True)


def _shown(value: object) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
