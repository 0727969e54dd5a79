"""`millrace top`: redrawn every second in a terminal, one snapshot as JSON elsewhere."""

import argparse
import json
import time
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.live import Live

from millrace_tools.command import RAY_ADDRESS, SERVICES_URL, command, option
from millrace_tools.top.alarms import alarms
from millrace_tools.top.observer import Observer
from millrace_tools.top.screen import RewardHistory, draw
from millrace_tools.top.snapshot import Snapshot
from services.protocol.errors import InvalidInput

_EVERY_S = 1.0


@command(
    "top",
    SERVICES_URL,
    RAY_ADDRESS,
    option("--once", action="store_true", help="draw one look and end"),
    option("--every", type=float, default=_EVERY_S, help=f"seconds ({_EVERY_S:g})"),
)
def top(arguments: argparse.Namespace, console: Console) -> int:
    """Watch runs, replicas, rewards and pushes."""
    if not arguments.every > 0:
        raise InvalidInput("--every", arguments.every, "Give seconds above 0.")
    history = RewardHistory()
    with Observer(arguments.url, arguments.address) as observer:
        if arguments.once or not console.is_terminal:
            observer.wait_for_cluster()
            look = observer.steady_look()
            history.add(look.runs)
            if console.is_terminal:
                console.print(draw(look, history), highlight=False)
            else:
                print(json.dumps(as_json(look), indent=2))
            return 0
        with (
            suppress(KeyboardInterrupt),  # the way to end it
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                look = observer.look()
                history.add(look.runs)
                live.update(draw(look, history), refresh=True)
                time.sleep(arguments.every)
    return 0


def as_json(look: Snapshot) -> Any:
    """The snapshot and its alarms."""
    return {"alarms": alarms(look)} | TypeAdapter(Snapshot).dump_python(look, mode="json")
