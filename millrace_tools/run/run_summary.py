"""The summary of a run that has ended."""

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from millrace_tools.client.runs_client import URL
from millrace_tools.output import error_console, print_line
from millrace_tools.run.follow import RunLost
from millrace_tools.run.run_view import (
    evaluation_text,
    failures_text,
    ledger_text,
    tokens_text,
    version_text,
)
from services.ledger.ledger import ledger_of
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunState, RunStatus, RunSummary

_EARLY, _LATE = 2, 4
_WORDS = 60


def show_summary(status: RunStatus, trajectories: list[dict[str, Any]], console: Console) -> None:
    """Print the ending, the figures, where the files are, and answers of the model."""
    table = Table.grid(padding=(0, 2))
    for name, value in _figures(status):
        table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    good = status.state == RunState.FINISHED
    style = ("yellow" if status.findings else "green") if good else "red"
    console.print(Panel(table, title=f"{status.run_id} {status.state}", border_style=style))
    for one in status.findings:
        console.print(Text(f"{one.text}.\n  {one.advice}."), soft_wrap=True)
    if not good:
        console.print(Text(status.detail))
    if trajectories:
        console.print(_answers(trajectories))


def show_how_to_resume(status: RunStatus, url: str, console: Console) -> None:
    """Print the command that resumes a run; on a line of its own, whole, to be copied."""
    command = resume_command(status.run_dir, status.run_id, url)
    console.print(Text(f"To resume it:\n  {command}"), soft_wrap=True)


def resume_command(run_dir: str, run_id: str, url: str) -> str:
    """The command that resumes a run, with the run file in its folder."""
    words = ["millrace", "run", near(Path(run_dir) / "config.yaml"), "--resume", run_id]
    words += ["--url", url] if url != URL else []
    return shlex.join(words)


def show_lost(status: RunStatus, why: RunLost, url: str, console: Console) -> None:
    """Print that a run was lost sight of, where its files are, and how to resume it."""
    error_console().print(f"error: {status.run_id} was lost sight of: {why}")
    with suppress(InvalidInput), ledger_of(status.run_dir) as ledger:
        line = f"Its ledger is at train step {ledger.last_step()} of {status.steps}."
        print_line(line, console)
    print_line(f"Its files are in {near(status.run_dir)}.", console)
    show_how_to_resume(status, url, console)


def near(path: str | Path) -> str:
    """The path from the current folder if it is below it, else as it is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _figures(status: RunStatus) -> list[tuple[str, str]]:
    rows = []
    summary = status.summary
    if summary is not None:
        rows = [
            ("held-out pass rate", _before_after(summary)),
            *_evaluations(summary),
            ("train steps", str(summary.train_steps)),
            ("seconds", f"{summary.wall_s:.1f}"),
            ("tokens sampled", tokens_text(summary)),
            ("weight pushes", _pushes(summary)),
            ("sample groups", ledger_text(summary.ledger)),
            ("seed", str(summary.seed)),
        ]
    rows += _problems(summary or status)
    folder = Path(status.run_dir)
    rows.append(("run directory", near(folder)))
    files = [
        ("learning curve", "learning_curve.png"),
        ("sample trajectories", "trajectories.jsonl"),
        ("summary", "summary.json"),
    ]
    return rows + [(f"  {name}", file) for name, file in files if (folder / file).exists()]


def _evaluations(summary: RunSummary) -> list[tuple[str, str]]:
    """The newest of each held-out set, unless the pass rate says the same."""
    after = summary.evaluations_after
    if all(one.samples == 1 for one in after) and len(after) < 2:
        return []
    return [(f"held-out, {one.name}", evaluation_text(one)) for one in after]


def _pushes(summary: RunSummary) -> str:
    newest = version_text(summary.policy_version, summary.train_steps)
    return f"{summary.weight_pushes} (policy {newest})"


def _before_after(summary: RunSummary) -> str:
    before, after = summary.heldout_pass_rate_before, summary.heldout_pass_rate_after
    rates = ["not measured" if rate is None else f"{rate:.0%}" for rate in (before, after)]
    measured = summary.heldout_step
    early = measured is not None and measured < summary.train_steps
    return " -> ".join(rates) + (f" (after step {measured}, the last measured)" if early else "")


def _problems(run: RunStatus | RunSummary) -> list[tuple[str, str]]:
    """Reasons of missing held-out tasks and failed sample groups."""
    rows = []
    if run.heldout_problem:
        rows.append(("held-out tasks", run.heldout_problem))
    if run.failures:
        rows.append(("failures", failures_text(run.failures)))
    if run.failure_example:
        rows.append(("the first", run.failure_example))
    return rows


def _answers(trajectories: list[dict[str, Any]]) -> Table:
    """Some of the first answers of the run and some of the last."""
    shown = trajectories
    if len(shown) > _EARLY + _LATE:
        shown = trajectories[:_EARLY] + trajectories[-_LATE:]
    table = Table(title="The model's own answers while it learned", title_justify="left")
    for column in ("step", "prompt", "answer", "verdict"):
        table.add_column(column)
    for line in shown:
        style = "green" if line["reward"] > 0 else "red"
        table.add_row(
            str(line["step"]),
            Text(_short(line["messages"][-1]["content"])),
            Text(_short(line["answer"])),
            Text(line["verdict"], style=style),
        )
    return table


def _short(content: object) -> str:
    """On one line and with nothing hidden: a stray control character is why code fails."""
    letters = str(content).strip()
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in letters)
    return text if len(text) <= _WORDS else text[: _WORDS - 3] + "..."
