"""Draws a snapshot in 80 columns, or more in a wider terminal."""

import time
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from millrace_tools.client.runs_client import ENDED
from millrace_tools.output import shown
from millrace_tools.run.run_view import duration_text, run_table
from millrace_tools.top.alarms import alarms
from millrace_tools.top.snapshot import Push, Replica, Rewards, Snapshot
from services.protocol.run.orchestrator import RunStatus

_ENDED_SHOWN = 3
_ALARMS_SHOWN = 6
_REPLICAS_SHOWN = 16


class RewardHistory:
    """Rewards of the steps seen so far, by run."""

    def __init__(self) -> None:
        self._rewards: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def add(self, runs: Sequence[RunStatus]) -> None:
        """Remember the newest step of each."""
        for run in runs:
            if run.reward is not None:
                self._rewards[run.run_id][run.step] = run.reward

    def of(self, run_id: str) -> list[float]:
        """In the order of steps."""
        return [reward for _, reward in sorted(self._rewards[run_id].items())]


def draw(look: Snapshot, history: RewardHistory) -> RenderableType:
    """The whole screen: alarms first."""
    parts: list[RenderableType] = [_heading(look)]
    parts += [Text(f"! {text}", style="bold red", overflow="fold") for text in _shown_alarms(look)]
    active = [run for run in look.runs if run.state not in ENDED]
    ended = [run for run in look.runs if run.state in ENDED][-_ENDED_SHOWN:]
    for run in active:
        title = _title("run", run.run_id)
        parts += [Rule(title, align="left"), run_table(run, history.of(run.run_id))]
    if ended or not active:
        parts.append(Rule(_title("runs that are over"), align="left"))
        parts += [_ended(run) for run in ended] or [Text("No runs yet.", style="dim")]
    parts += [Rule(_title("replicas"), align="left"), _replicas(look)]
    parts += [Rule(_title("rewards"), align="left"), _rewards(look.rewards)]
    parts += [Rule(_title("pushes"), align="left"), _pushes(look.pushes)]
    return Group(*parts)


def _title(*words: str) -> Text:
    return Text(" ".join(words), style="bold")


def _heading(look: Snapshot) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(look.at))
    text = Text(f"millrace top  {at}  {look.url}", style="bold", overflow="ellipsis", no_wrap=True)
    if look.load is not None:
        load = look.load
        text.append(f"  {load.in_flight} in flight, {load.waiting} waiting", style="not bold")
    return text


def _shown_alarms(look: Snapshot) -> list[str]:
    found = alarms(look)
    more = len(found) - _ALARMS_SHOWN
    return found[:_ALARMS_SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _ended(run: RunStatus) -> Text:
    rates = f"reward {shown(run.reward)}  held-out {shown(run.heldout_pass_rate)}"
    return Text(f"{run.run_id}  {run.state}  {run.step}/{run.steps}  {rates}", overflow="fold")


def _replicas(look: Snapshot) -> RenderableType:
    if not look.replicas:
        return Text("None is known." if "weight bus" not in look.absent else "-", style="dim")
    table = _columns("replica", "state", "version", "lease", "in flight", "queued", "KV")
    for one in look.replicas[:_REPLICAS_SHOWN]:
        table.add_row(*_replica(one, look.newest_version))
    more = len(look.replicas) - _REPLICAS_SHOWN
    return table if more <= 0 else Group(table, Text(f"and {more} more", style="dim"))


def _replica(one: Replica, newest: int | None) -> tuple[str | Text, ...]:
    behind = 0 if newest is None or one.version is None else newest - one.version
    return (
        Text(one.replica_id, overflow="ellipsis", no_wrap=True),
        one.state,
        shown(one.version) + (f" (-{behind})" if behind > 0 else ""),
        "yes" if one.leased else "no",
        shown(one.in_flight),
        shown(one.waiting),
        "-" if one.kv_usage is None else f"{one.kv_usage:.0%}",
    )


def _rewards(found: Rewards | None) -> RenderableType:
    if found is None:
        return Text("-", style="dim")
    age = f" (oldest {found.queue_age_s:.0f} s)" if found.queue else ""
    often = sorted(found.verdicts.items(), key=lambda item: -item[1])
    verdicts = ", ".join(f"{verdict} {rate:.1f}/s" for verdict, rate in often)
    load = f"{found.queue} queued{age}, {shown(found.slots_busy)} slots at work"
    return Text(f"{load}\n{verdicts or 'no answer was graded lately'}", overflow="fold")


def _pushes(found: Sequence[Push]) -> RenderableType:
    if not found:
        return Text("-", style="dim")
    table = _columns("version", "step", "age", "took", "commits", "failures")
    for push in reversed(found):
        table.add_row(
            str(push.version),
            shown(push.train_step),
            "-" if push.age_s is None else duration_text(push.age_s),
            "-" if push.took_s is None else f"{push.took_s:.2f} s",
            str(push.commits),
            str(push.failures),
        )
    return table


def _columns(*names: str) -> Table:
    table = Table(*names, box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.columns[0].overflow = "ellipsis"  # its cells are cut in a narrow terminal
    for column in table.columns[1:]:
        column.no_wrap = True
    return table
