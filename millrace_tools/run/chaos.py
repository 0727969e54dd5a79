"""`millrace chaos`: inject faults into a running cluster, and check that nothing is lost."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from millrace_tools.chaos.control_connections import ControlConnections
from millrace_tools.chaos.observation import InjectedFault, Observation
from millrace_tools.chaos.report import Report, make_report
from millrace_tools.chaos.script import Script
from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.client.serve_details import LOOPBACK
from millrace_tools.client.services_url import API_KEY
from millrace_tools.command import ACTIVE_RUN, FAILED, RAY_ADDRESS, SERVICES_URL, command, option
from millrace_tools.output import print_line, print_rows
from services.ledger.ledger import ledger_of
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunStatus

Agents = Sequence[tuple[str, Any]]
"""Address and `NodeAgent` of each node."""

_CLIENT_PAUSE_S = 0.5
_COLUMNS = ("at s", "fault", "target", "leased again s", "next step s", "next answer s")
_SHOWN_LOSSES = 20


@command(
    "chaos",
    SERVICES_URL,
    RAY_ADDRESS,
    ACTIVE_RUN,
    option("--seed", type=int, default=0, help="of the random faults (0)"),
    option("--for", dest="seconds", type=float, default=60.0, help="seconds (60)"),
    option("--every", type=float, default=10.0, help="seconds between faults (10)"),
    option("--script", metavar="FILE", help="of faults, in place of random ones"),
    option("--clients", type=int, default=2, help="of the router meanwhile (2)"),
    option("--settle", type=float, default=120.0, help="seconds to recover in (120)"),
    option("--json", type=Path, help="write the report here, too"),
    option("--yes", action="store_true", help="do not ask before hitting other hosts"),
)
def chaos(arguments: argparse.Namespace, console: Console) -> int:
    """Inject faults into a run's cluster; status 1 if anything was lost."""
    arguments.script = Script.from_yaml(arguments.script) if arguments.script else None
    # Ray and openai take seconds to import; only this command needs both.
    from millrace_tools.chaos.node_agent import NodeAgent
    from millrace_tools.client.joined_cluster import joined_cluster, node_actors
    from services.peers import bus_peer

    with RunsClient(arguments.url) as runs:
        run = runs.status(arguments.run_id) if arguments.run_id else runs.active("break")
        if run.state in ENDED:
            raise InvalidInput("run_id", run.run_id, f"The run is {run.state} already.")
        with joined_cluster(arguments.address):
            agents = node_actors(NodeAgent)
            _check_cluster(agents, run)
            _confirm(arguments, agents)
            members = asyncio.run(bus_peer().watch(-1, 0.0)).members
            seen = Observation(expected=sum(member.leased for member in members))
            interrupted = asyncio.run(_campaign(arguments, runs, run, agents, seen, console))
    report = make_report(seen)
    _show(report, console)
    if arguments.json:  # with figures that the table leaves out
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    if interrupted:
        raise KeyboardInterrupt
    return FAILED if report.lost else 0


async def _campaign(
    arguments: argparse.Namespace,
    runs: RunsClient,
    run: RunStatus,
    agents: Agents,
    seen: Observation,
    console: Console,
) -> bool:
    """Fill `seen`; returns whether it was interrupted."""
    from millrace_tools.chaos.campaign import Campaign, clock, monitored
    from millrace_tools.chaos.fault_targets import FaultTargets
    from millrace_tools.chaos.load_client import LoadClient
    from millrace_tools.chaos.monitor import Monitor

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    now = clock()
    monitor = Monitor(
        observation=seen,
        clock=now,
        status=lambda: runs.status(run.run_id),
        audit=lambda: _audit(run.run_dir),
    )
    key = os.environ.get(API_KEY)
    clients = [LoadClient(runs.url, key, now, seen.calls) for _ in range(arguments.clients)]
    ledger = str(Path(run.run_dir) / "ledger.sqlite")
    with contextlib.suppress(asyncio.CancelledError):
        async with monitored(monitor, clients, _CLIENT_PAUSE_S), _undoing(seen) as address:
            targets = FaultTargets(
                agents=agents, run_dir=run.run_dir, ledger=ledger, control_address=address
            )
            campaign = Campaign(targets, monitor, lambda injected: _print(injected, console))
            if arguments.script is not None:
                await campaign.scripted(arguments.script, arguments.seed)
            else:
                seed, every_s = arguments.seed, arguments.every
                await campaign.at_random(seed, for_s=arguments.seconds, every_s=every_s)
            await campaign.until_recovered(arguments.settle, calls=bool(clients))
            seen.ended_s = now()
            return False
    seen.ended_s = now()
    return True


@contextlib.asynccontextmanager
async def _undoing(seen: Observation) -> AsyncIterator[tuple[str, int]]:
    """Undo every fault on exit; inside, the address that fault processes connect to."""
    import ray

    here: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    connections = ControlConnections()
    try:
        yield await connections.start(here)
    finally:
        seen.lasting = await asyncio.shield(connections.close())


def _audit(run_dir: str) -> tuple[int, int]:
    with ledger_of(run_dir) as ledger:
        return ledger.imbalance(), ledger.next_position() - ledger.counts().admitted


def _check_cluster(agents: Agents, run: RunStatus) -> None:
    """Refuse another cluster than the run's, whose process has the run's ledger open."""
    import ray

    ledger = str(Path(run.run_dir) / "ledger.sqlite")
    asked: list[Any] = [agent.has_open.remote(ledger) for _, agent in agents]
    if not any(ray.get(asked, timeout=60)):
        fix = f"No process of this Ray cluster has {ledger} open: the run is of another one."
        raise InvalidInput("--address", run.run_id, fix)


def _confirm(arguments: argparse.Namespace, agents: Agents) -> None:
    """Ask before processes of other machines are hit.

    Raises:
        InvalidInput: the answer is no, or standard input is no terminal.
    """
    host = urlsplit(arguments.url).hostname
    if arguments.yes or (host in LOOPBACK and len(agents) == 1):
        return
    where = ", ".join(address for address, _ in agents)
    question = f"Kill and freeze processes of {arguments.url} on {where}? [y/N] "
    if not sys.stdin.isatty() or input(question).strip().lower() not in ("y", "yes"):
        fix = "Nothing was done. Show that you mean these hosts: give --yes."
        raise InvalidInput("--yes", where, fix)


def _print(injected: InjectedFault, console: Console) -> None:
    spec = injected.spec
    lasts = f" for {spec.seconds:g} s" if spec.seconds else ""
    fault = f"{spec.fault} {spec.target}{lasts}"
    result = f"not done: {injected.refused}" if injected.refused else injected.victim
    line = f"{injected.at_s:7.1f} s  {fault:28} {result}"
    print_line(line, console)


def _show(report: Report, console: Console) -> None:
    """Print a line for every fault, and what was lost."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for one in report.recoveries:
        if not one.refused:
            times = map(_seconds, (one.leased_s, one.stepped_s, one.answered_s))
            rows.append((f"{one.at_s:.1f}", one.fault, one.target, *times))
    console.print()
    print_rows(rows, console)
    totals = report.totals
    retried = totals["calls_retried"]
    print_line(
        f"\n{totals['faults']} faults in {totals['seconds']:.0f} s; {totals['calls']} client calls,"
        f" {retried} retried; {totals['ledger_audits']} audits of the ledger; train step"
        f" {totals['train_step']}",
        console,
    )
    for loss in report.lost[:_SHOWN_LOSSES]:
        print_line(f"LOST  {loss}", console)
    if len(report.lost) > _SHOWN_LOSSES:
        print_line(f"LOST  and {len(report.lost) - _SHOWN_LOSSES} more losses", console)
    if not report.lost:
        print_line("Nothing was lost.", console)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"
