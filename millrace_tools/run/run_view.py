"""A run as a live table in a terminal, else as a line per train step."""

from collections.abc import Mapping
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from millrace_tools.client.runs_client import ENDED
from millrace_tools.output import print_line, shown
from millrace_tools.run.step_log import Step
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import LedgerCounts, RunState, RunStatus, RunSummary

_SPARKS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


class RunView:
    """Shows one run; use as a context manager and call `show` with every new status."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True) if console.is_terminal else None
        self._rewards: dict[int, float] = {}
        self._heldout: float | None = None
        self._seconds: Mapping[str, float] = {}
        self._said = ""
        self._ledger: Mapping[str, int] | None = None
        self._found: set[str] = set()
        self._ahead = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: RunStatus, steps: list[Step]) -> None:
        """Draw this status in place of the last one; `steps` are those done since then."""
        self._rewards |= {step.number: step.reward for step in steps}
        self._seconds = steps[-1].seconds if steps else self._seconds
        if self._live is not None:
            self._live.update(self._drawn(status))
            return
        if not self._rewards:
            self._heldout = status.heldout_pass_rate  # measured before the first step
        self._explain_versions(status)
        if self._ledger is None:  # of a resumed run: what was closed before
            self._ledger = {} if steps else status.ledger.model_dump()
        for step in steps:
            self._heldout = self._heldout if step.heldout is None else step.heldout
            self._say(_line(step, status.steps, self._heldout, filtered_share(step, self._ledger)))
            self._ledger = step.ledger
        for one in status.findings:
            if one.kind not in self._found and status.state not in ENDED:  # the summary has them
                self._say(f"warning: {one.text}. {one.advice}.")
        self._found |= {one.kind for one in status.findings}
        if status.state != RunState.TRAINING or not self._rewards:
            self._say(f"{status.state}: {status.detail}")

    def _explain_versions(self, status: RunStatus) -> None:
        """Say once how policy versions and train steps of this run belong together."""
        ahead = (status.policy_version or 0) - status.step
        if status.policy_version is not None and ahead != self._ahead:
            self._ahead = ahead
            self._say(
                f"policy version {status.policy_version} is step {status.step} of this run: "
                "versions count the weights of all runs since the services started"
            )

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            print_line(line, self._console)

    def _drawn(self, status: RunStatus) -> RenderableType:
        table = run_table(status, list(self._rewards.values()))
        for one in status.findings:
            table.add_row(Text("warning", style="yellow"), Text(f"{one.text}. {one.advice}."))
        if self._seconds:
            table.add_row("last step", _phases(self._seconds))
        return Group(Text(f"{status.run_id}  {status.elapsed_s:.0f} s", style="bold"), table)


def run_table(status: RunStatus, rewards: list[float]) -> Table:
    """The status of an active run; `rewards` are those of its steps."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_row("state", Text.assemble((status.state, "bold"), f" {status.detail}"))
    bar = ProgressBar(total=status.steps, completed=status.step, width=_WIDTH)
    left = "" if status.seconds_left is None else f", {duration_text(status.seconds_left)} left"
    table.add_row("step", bar, f"{status.step}/{status.steps}{left}")
    table.add_row("reward", sparkline(rewards), shown(status.reward))
    for one in status.evaluations:
        table.add_row(Text(f"held-out, {one.name}"), evaluation_text(one), f"step {one.step}")
    tokens = tokens_text(status)
    table.add_row("tokens sampled", tokens, f"{status.tokens_per_second:,.0f}/s")
    version = version_text(status.policy_version, status.step)
    table.add_row("policy", version, _staleness(status.staleness))
    for side, causes in status.idle.items():
        if text := idle_text(causes):
            table.add_row(f"{side} idle", text)
    table.add_row("replicas", f"{status.live_replicas} leased")
    table.add_row("ledger", ledger_text(status.ledger))
    if status.failures:
        table.add_row("failures", Text(failures_text(status.failures)))
    return table


def version_text(version: int | None, step: int) -> str:
    """A policy version, which counts over all runs, and this run's own step."""
    return "none yet" if version is None else f"version {version} = step {step} of this run"


def idle_text(causes: Mapping[str, float]) -> str:
    """Idle shares in one line, the largest first."""
    parts = sorted(causes.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {cause}" for cause, share in parts if share >= 0.005)


def tokens_text(run: RunStatus | RunSummary) -> str:
    """Tokens sampled for training, as in the ledger, and those of evaluations beside them."""
    beside = f" (and {run.tokens_evaluated:,} in evaluations)" if run.tokens_evaluated else ""
    return f"{run.tokens_sampled:,}{beside}"


def ledger_text(counts: LedgerCounts) -> str:
    """The ledger in one line: every admitted group, by how it ended."""
    parts = counts.model_dump()
    admitted = parts.pop("admitted")
    ends = " + ".join(f"{count} {name.replace('_', ' ')}" for name, count in parts.items() if count)
    return f"{admitted} groups = {ends}" if ends else f"{admitted} groups"


def failures_text(reasons: Mapping[str, int]) -> str:
    """Reasons of failed sample groups in one line, the most frequent first."""
    often = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} x {reason}" for reason, count in often)


def evaluation_text(evaluation: Evaluation) -> str:
    """The rates of one held-out set in one line."""
    rates = [f"pass@{k} {shown(rate)}" for k, rate in sorted(evaluation.pass_at.items())]
    return "  ".join([*rates, f"avg@{evaluation.samples} {shown(evaluation.reward)}"])


def _phases(seconds: Mapping[str, float]) -> str:
    """Wall time of a step by use; `wait` is the trainer's idle time until a batch is ready."""
    whole = sum(seconds.values()) or 1.0
    parts = (f"{name} {took / whole:.0%}" for name, took in seconds.items() if took)
    return f"{whole:.1f} s: " + ", ".join(parts)


def duration_text(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def filtered_share(step: Step, before: Mapping[str, int]) -> float | None:
    """Share of the sample groups closed since the ledger `before` that taught nothing.

    None where the ledger is not known, or nothing was closed.
    """
    filtered, trained = (
        max(0, step.ledger.get(ending, 0) - before.get(ending, 0))
        for ending in ("filtered", "trained")
    )
    return filtered / (filtered + trained) if filtered + trained else None


def _line(step: Step, steps: int, heldout: float | None, filtered: float | None) -> str:
    return (
        f"step {step.number}/{steps}  reward {shown(step.reward)}  "
        + (f"held-out {shown(heldout)}  " if heldout is not None else "")
        + (f"filtered {filtered:.0%}  " if filtered is not None else "")
        + f"version {shown(step.policy_version)}  {_staleness(step.staleness)}"
    )


def sparkline(values: list[float]) -> str:
    """The newest values, each from 0 to 1, as bars."""
    top = len(_SPARKS) - 1
    newest = (min(max(value, 0.0), 1.0) for value in values[-_WIDTH:])
    return "".join(_SPARKS[round(value * top)] for value in newest)


def _staleness(value: float | None) -> str:
    return "" if value is None else f"staleness {value:g}"
