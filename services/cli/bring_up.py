"""Waits until a deployment serves, and says what each application is doing meanwhile."""

import time
from typing import Protocol

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table

from services.cli.deployment import AppState
from services.protocol.errors import NotReady

_POLL_S = 0.25
_STYLES = {"RUNNING": "green", "DEPLOYING": "yellow"}


class Deploying(Protocol):
    """What is waited for; `Deployment` is one."""

    def states(self) -> list[AppState]:
        """How far each application is."""


def wait_until_running(deployment: Deploying, console: Console, *, timeout_s: float) -> None:
    """Return when every application runs.

    Raises:
        NotReady: one has failed or the time is over; says which and why.
    """
    began = time.monotonic()
    said: set[str] = set()
    with Live(console=console, transient=True) as live:
        while True:
            states = deployment.states()
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
            if len(said) == len(states):
                return
            if time.monotonic() - began > timeout_s:
                late = [state for state in states if state.status != "RUNNING"]
                why = "; ".join(f"{s.name} is {s.status} {reason(s.message)}" for s in late)
                raise NotReady(f"not all services are up after {timeout_s:g} s: {why}")
            time.sleep(_POLL_S)


def wait_until_leased(url: str, replicas: int, *, timeout_s: float) -> None:
    """Return when the router says that so many replicas hold a lease.

    Raises:
        NotReady: the time is over.
    """
    deadline = time.monotonic() + timeout_s
    leased = 0
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        while leased < replicas:
            if time.monotonic() > deadline:
                raise NotReady(f"{leased} of {replicas} replicas have weights and a lease in time")
            time.sleep(_POLL_S)
            try:
                leased = client.get(f"{url}/health").json()["leased_replicas"]
            except (httpx.HTTPError, ValueError, KeyError):
                leased = 0  # the proxy does not know the route yet


def reason(message: str) -> str:
    """The line of Serve's message that people need: the error at the end of a traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if "InvalidInput: " in line]
    if named:
        return named[-1].partition("InvalidInput: ")[2]
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or [""])[-1]


def _table(states: list[AppState]) -> Table:
    table = Table.grid(padding=(0, 2))
    for state in states:
        style = _STYLES.get(state.status, "dim")
        table.add_row("   ", state.name, f"[{style}]{state.status.lower()}[/]")
    return table
