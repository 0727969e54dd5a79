"""`millrace chaos`: break a running cluster on purpose, and see that nothing is lost."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.console import Console

from millrace_tools.chaos.account import account
from millrace_tools.chaos.lifelines import Lifelines
from millrace_tools.chaos.observation import Observation, Struck
from millrace_tools.chaos.script import Script
from millrace_tools.client.api_key import API_KEY
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.run.chaos_report import show_account, write_account
from millrace_tools.run.follow import ENDED
from millrace_tools.run.run_commands import active_run
from services.ledger.ledger import ledger_of
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunStatus

if TYPE_CHECKING:
    from millrace_tools.chaos.hand import Node

_LOST = 1
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FIRST_SIGHT_S = 30.0
_AGENT_PAUSE_S = 0.5


def add_chaos_command(commands: Any, served: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    chaos = commands.add_parser(
        "chaos",
        parents=[served],
        help="break a run's cluster on purpose; status 1 if anything was lost",
    )
    chaos.add_argument("run_id", nargs="?", help="the active one, if left out")
    chaos.add_argument("--seed", type=int, default=0, help="of what is hit when (0)")
    chaos.add_argument("--for", dest="seconds", type=float, default=60.0, help="seconds (60)")
    chaos.add_argument("--every", type=float, default=10.0, help="seconds between faults (10)")
    chaos.add_argument("--script", metavar="FILE", help="of faults, in place of random ones")
    chaos.add_argument("--agents", type=int, default=2, help="outside clients beside it (2)")
    chaos.add_argument("--settle", type=float, default=120.0, help="seconds to heal in (120)")
    chaos.add_argument("--json", type=Path, help="write the report here, too")
    chaos.add_argument("--address", help="of the Ray cluster (RAY_ADDRESS, or the one here)")
    chaos.add_argument("--yes", action="store_true", help="do not ask before hitting other hosts")
    chaos.set_defaults(command=chaos_command)


def chaos_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace chaos`: faults, and a report of what they cost."""
    arguments.script = Script.from_yaml(arguments.script) if arguments.script else None
    # Ray and openai take seconds to import; only this command needs both.
    from millrace_tools.chaos.hand import nodes
    from millrace_tools.client.bus_client import BusClient

    with RunsClient(arguments.url) as runs:
        run = runs.status(arguments.run_id) if arguments.run_id else active_run(runs, "break")
        if run.state in ENDED:
            raise InvalidInput("run_id", run.run_id, f"The run is {run.state} already.")
        with BusClient(arguments.address) as bus:
            hands = nodes()
            _check_cluster(hands, run)
            _confirm(arguments, hands)
            seen = Observation(expected=sum(member.leased for member in bus.members()))
            interrupted = asyncio.run(_campaign(arguments, runs, run, hands, seen, console))
    drawn = account(seen)
    show_account(drawn, console)
    if arguments.json:
        write_account(drawn, arguments.json)
    if interrupted:
        raise KeyboardInterrupt
    return _LOST if drawn.lost else 0


async def _campaign(
    arguments: argparse.Namespace,
    runs: RunsClient,
    run: RunStatus,
    hands: "list[Node]",
    seen: Observation,
    console: Console,
) -> bool:
    """Fill `seen`; returns whether it was interrupted."""
    from millrace_tools.chaos.agent import Agent
    from millrace_tools.chaos.aims import Aims
    from millrace_tools.chaos.campaign import Campaign, clock, watched
    from millrace_tools.chaos.draw import Draw
    from millrace_tools.chaos.watch import Watch

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    now = clock()
    watch = Watch(seen, now, lambda: runs.status(run.run_id), lambda: _audit(run.run_dir))
    key = os.environ.get(API_KEY)
    agents = [Agent(runs.url, key, now, seen.calls) for _ in range(arguments.agents)]
    ledger = str(Path(run.run_dir) / "ledger.sqlite")
    with contextlib.suppress(asyncio.CancelledError):
        async with watched(watch, agents, _AGENT_PAUSE_S), _undoing(seen) as lifeline:
            aims = Aims(hands, run_dir=run.run_dir, ledger=ledger, lifeline=lifeline)
            campaign = Campaign(aims, seen, now, watch, lambda struck: _say(struck, console))
            if arguments.script is not None:
                await campaign.scripted(arguments.script, arguments.seed)
            else:
                draw = Draw(arguments.seed)
                await campaign.at_random(draw, for_s=arguments.seconds, every_s=arguments.every)
            await campaign.until_whole(arguments.settle, calls=bool(agents))
            seen.ended_s = now()
            return False
    seen.ended_s = now()
    return True


@contextlib.asynccontextmanager
async def _undoing(seen: Observation) -> AsyncIterator[tuple[str, int]]:
    """Whatever ends it, nothing stays frozen; inside, where keepers connect to."""
    import ray

    here: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    lifelines = Lifelines()
    lifeline = await lifelines.start(here)
    try:
        yield lifeline
    finally:
        seen.lasting = await asyncio.shield(lifelines.cut())


def _audit(run_dir: str) -> tuple[int, int]:
    with ledger_of(run_dir) as ledger:
        return ledger.imbalance(), ledger.next_position() - ledger.counts().admitted


def _check_cluster(hands: "list[Node]", run: RunStatus) -> None:
    """Only the run's own cluster is broken: a process of it has the run's ledger open."""
    import ray

    ledger = str(Path(run.run_dir) / "ledger.sqlite")
    asked: list[Any] = [node.hand.holds.remote(ledger) for node in hands]
    if not any(ray.get(asked, timeout=60)):
        fix = f"No process of this Ray cluster has {ledger} open: the run is of another one."
        raise InvalidInput("--address", run.run_id, fix)


def _confirm(arguments: argparse.Namespace, hands: "list[Node]") -> None:
    """Ask before anything but this machine is hit.

    Raises:
        InvalidInput: the answer is no, or there is nobody to ask.
    """
    host = urlsplit(arguments.url).hostname
    if arguments.yes or (host in _LOOPBACK and len(hands) == 1):
        return
    where = ", ".join(node.address for node in hands)
    question = f"Kill and freeze processes of {arguments.url} on {where}? [y/N] "
    if not sys.stdin.isatty() or input(question).strip().lower() not in ("y", "yes"):
        fix = "Nothing was done. Show that you mean these hosts: give --yes."
        raise InvalidInput("--yes", where, fix)


def _say(struck: Struck, console: Console) -> None:
    lasts = f" for {struck.deed.seconds:g} s" if struck.deed.seconds else ""
    what = f"{struck.deed.fault} {struck.deed.target}{lasts}"
    how = f"not done: {struck.refused}" if struck.refused else struck.victim
    line = f"{struck.at_s:7.1f} s  {what:28} {how}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
