"""`millrace profile`: where the time of the next train steps goes."""

import argparse
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.command import ACTIVE_RUN, FAILED, SERVICES_URL, command, option
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput
from services.protocol.run.profile import Profile, ProfileOrder, RankProfile

LOOK_S = 2.0
"""Between two looks at what ranks have done."""


@command(
    "profile",
    SERVICES_URL,
    ACTIVE_RUN,
    option("--steps", type=int, default=2, help="train steps, 10 at most (2)"),
    option("--ranks", default="0", help="of the trainer, such as 0,1 (0)"),
)
def profile(arguments: argparse.Namespace, console: Console) -> int:
    """Profile the next train steps of a run."""
    with RunsClient(arguments.url) as client:
        run_id = arguments.run_id or client.active("profile").run_id
        order = _order(arguments)
        begun = client.profile(run_id, order)
        print_line(f"{run_id}: profiling {order.steps} train steps into {begun.folder}", console)
        done = _until_done(client, run_id, begun, len(order.ranks))
    for one in done.ranks:
        _show(one, console)
    if missing := len(order.ranks) - len(done.ranks):
        why = "the run ended, or the ranks were started again, before they were done"
        print_line(f"{missing} ranks left no profile: {why}", console)
    return FAILED if missing or any(one.problem for one in done.ranks) else 0


def _order(arguments: argparse.Namespace) -> ProfileOrder:
    try:
        ranks = sorted({int(rank) for rank in arguments.ranks.split(",")})
    except ValueError:
        raise InvalidInput("--ranks", arguments.ranks, "Give numbers, such as 0,1.") from None
    return ProfileOrder.from_data({"steps": arguments.steps, "ranks": ranks}, source="profile")


def _until_done(client: RunsClient, run_id: str, begun: Profile, ranks: int) -> Profile:
    """The profile once all ranks are done, or none can be any more: the run has ended, or is a
    step further than the last that was profiled, after which ranks write before the next one."""
    while True:
        status = client.status(run_id)
        found = client.profiled(run_id, begun.name)
        too_late = status.state in ENDED or status.step > begun.last_step
        if len(found.ranks) >= ranks or too_late:
            return found
        time.sleep(LOOK_S)


def _show(one: RankProfile, console: Console) -> None:
    title = f"rank {one.rank}, {one.steps} steps up to {one.last_step}, {one.seconds:.2f} s"
    table = Table("by", "what", "seconds", "share", title=title)
    _rows(table, "phase", one.phases, one.seconds)
    for by, seconds in (("kind", one.kinds), ("operator", one.operators)):
        _rows(table, by, seconds, one.recorded_seconds)
    console.print(table)
    print_line(one.problem or f"trace: {one.trace}", console)


def _rows(table: Table, by: str, seconds: Mapping[str, float], total_s: float) -> None:
    for name, took in sorted(seconds.items(), key=lambda row: -row[1]):
        table.add_row(by, name, f"{took:.3f}", f"{took / total_s:.0%}" if total_s else "")
        by = ""
    table.add_section()
