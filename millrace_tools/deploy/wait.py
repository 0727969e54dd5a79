"""`millrace wait`: waits until a deployment serves, and shows the status of its applications."""

import argparse
import os
import re
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace_tools.client.application_status import application_states, leased_replicas
from millrace_tools.client.serve_details import ApplicationStatus
from millrace_tools.command import SERVICES_URL, command, option
from millrace_tools.output import print_line
from services.protocol.errors import NotReady

_STATES_S, _LEASES_S = 1.0, 0.25
"""Serve's status costs CPU time that starting services need more."""
_BUSY = 3.0
"""Load of a core from which services start several times slower; a start alone is about 1."""
_ERROR = re.compile(r"(\w+\.)*[A-Z]\w+: (?!Traceback)")
"""The line of a traceback that names its exception; Serve's own holds a whole traceback."""
_STYLES = {"RUNNING": "green", "DEPLOYING": "yellow"}


@command("wait", SERVICES_URL, option("--timeout", type=float, default=300.0, help="seconds (300)"))
def wait(arguments: argparse.Namespace, console: Console) -> int:
    """Wait until the services are as they were deployed last.

    Raises:
        InvalidInput: nothing listens at the URL, and no Ray cluster here has the services.
        NotReady: see `wait_until_running`.
    """
    url = arguments.url.rstrip("/")
    wait_until_running(lambda: application_states(url), console, timeout_s=arguments.timeout)
    leased = leased_replicas(url)
    replicas = f"{leased} replica{'s' if leased != 1 else ''}"
    print_line(f"Ready at {url}, {replicas} leased.", console)
    return 0


def wait_until_running(
    states_of: Callable[[], list[ApplicationStatus]], console: Console, *, timeout_s: float
) -> None:
    """Return when every application runs; `states_of` returns the status of each.

    In a terminal a table shows what it waits for, elsewhere a line whenever that changes.

    Raises:
        NotReady: one has failed or the time is over; says which and why.
    """
    began, awaited = time.monotonic(), ""
    said: set[str] = set()
    with Live(console=console, transient=True) as live:
        while True:
            states = states_of()
            live.update(_table(states))
            for state in states:
                if state.status == "RUNNING" and state.name not in said:
                    said.add(state.name)
                    live.console.print(
                        f"    {state.name:16} {state.running} up after "
                        f"{time.monotonic() - began:.1f} s",
                        highlight=False,
                    )
                if state.failed or "InvalidInput" in state.message:
                    raise NotReady(f"{state.name} does not start: {reason(state.message)}")
            late = [state for state in states if state.status != "RUNNING"]
            if not late:
                return
            missing = "; ".join(_lateness(state) for state in late)
            if time.monotonic() - began > timeout_s:
                raise NotReady(f"not all services are up after {timeout_s:g} s: {missing}{_busy()}")
            if missing != awaited and not console.is_terminal:
                print_line(f"    waiting: {missing}", console)
            awaited = missing
            time.sleep(_STATES_S)


def wait_until_leased(url: str, replicas: int, *, timeout_s: float) -> None:
    """Return when the router says that so many replicas hold a lease.

    Raises:
        NotReady: the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while (leased := leased_replicas(url)) < replicas:
        if time.monotonic() > deadline:
            raise NotReady(f"{leased} of {replicas} replicas have weights and a lease in time")
        time.sleep(_LEASES_S)


def reason(message: str) -> str:
    """The error at the end of the traceback in Serve's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if "InvalidInput: " in line]
    if named:
        return named[-1].partition("InvalidInput: ")[2]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or [""])[-1]


def _lateness(state: ApplicationStatus) -> str:
    status = state.status.lower().replace("_", " ")
    why = reason(state.message)
    if "taken more than" in why:  # Serve's guesses at the cause follow, the same for each
        why = why.partition(". ")[0]
    return f"{state.name} is {status}" + (f" ({why})" if why else "")


def _busy() -> str:
    """A hint where the machine has far more to run than cores."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < _BUSY * cores:
        return ""
    return f". This machine is busy: a load of {load:.0f} on {cores} cores"


def _table(states: list[ApplicationStatus]) -> Table:
    table = Table.grid(padding=(0, 2))
    for state in states:
        style = _STYLES.get(state.status, "dim")
        why = "" if state.status == "RUNNING" else reason(state.message)
        row = (Text(state.status.lower(), style=style), Text(why, style="dim", overflow="ellipsis"))
        table.add_row("   ", state.name, *row)
    return table
