"""`millrace top`: drawn anew every second in a terminal, one look as JSON elsewhere."""

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.live import Live

from millrace_tools.command import JOINED, SERVED, Commands, declare
from millrace_tools.top.alarms import alarms
from millrace_tools.top.observer import Observer
from millrace_tools.top.screen import RewardHistory, draw
from millrace_tools.top.snapshot import Snapshot
from services.protocol.errors import InvalidInput

_EVERY_S = 1.0


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(
        commands, "top", top_command, "watch runs, replicas, rewards and pushes", SERVED, JOINED
    )
    parser.add_argument("--once", action="store_true", help="draw one look and end")
    parser.add_argument("--every", type=float, default=_EVERY_S, help=f"seconds ({_EVERY_S:g})")


def top_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace top`: until Ctrl-C, whatever happens to the services meanwhile."""
    if not arguments.every > 0:
        raise InvalidInput("--every", arguments.every, "Give seconds above 0.")
    history = RewardHistory()
    with Observer(arguments.url, arguments.address) as observer:
        if arguments.once or not console.is_terminal:
            observer.wait_for_cluster()
            look = observer.look()
            history.add(look.runs)
            if console.is_terminal:
                console.print(draw(look, history), highlight=False)
            else:
                print(json.dumps(as_json(look), indent=2))
            return 0
        _watch(observer, history, console, arguments.every)
    return 0


def _watch(observer: Observer, history: RewardHistory, console: Console, every_s: float) -> None:
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                look = observer.look()
                history.add(look.runs)
                live.update(draw(look, history), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return  # the way to end it


def as_json(look: Snapshot) -> dict[str, Any]:
    """Everything seen, and the alarms."""
    plain = {"at": look.at, "url": look.url, "alarms": alarms(look)}
    for name in ("runs", "load", "newest_version", "replicas", "pushes", "rewards", "absent"):
        plain[name] = _plain(getattr(look, name))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
