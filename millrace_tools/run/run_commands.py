"""Commands that look into a run or hold it: `ledger`, `replay`, `logs`, `pause`, `unpause`, ..."""

import argparse
from typing import Any

from rich.console import Console

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.run.decision_replay import show_replay
from millrace_tools.run.follow import ENDED
from millrace_tools.run.ledger_balance import show_balance
from millrace_tools.run.run_log_view import show_run_log
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunStatus

_UNBALANCED = _DIFFERENT = 1
_LINES = 100
_CONTROLS = {
    "pause": "admit no sample group and train no step until `millrace unpause`",
    "unpause": "end the pause of a run",
    "checkpoint": "have the trainer write a checkpoint now",
}


def ledger_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace ledger`: the balance of a run, also of one that crashed; status 1 if it is off."""
    return 0 if show_balance(arguments.run_dir, console) else _UNBALANCED


def replay_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace replay`: decide a run's schedule again; status 1 if it comes out otherwise."""
    return 0 if show_replay(arguments.run_dir, console) else _DIFFERENT


def logs_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace logs`: what the orchestrator logged about a run."""
    if arguments.lines < 0:
        raise InvalidInput("--lines", arguments.lines, "Give a number from 0 up.")
    show_run_log(arguments.run_dir, console, lines=arguments.lines)
    return 0


def control_command(arguments: argparse.Namespace, console: Console) -> int:
    """`millrace pause`, `unpause` and `checkpoint`; without an id of the run that is active."""
    with RunsClient(arguments.url) as client:
        run_id = arguments.run_id or active_run(client, arguments.action).run_id
        status = client.control(run_id, arguments.action)
    line = f"{status.run_id}: {status.state} at train step {status.step}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def active_run(client: RunsClient, action: str) -> RunStatus:
    """The run that is active.

    Raises:
        InvalidInput: there is none.
    """
    active = [run for run in client.runs() if run.state not in ENDED]
    if not active:
        fix = f"No run is active, so there is nothing to {action}."
        raise InvalidInput("run_id", "(none)", fix)
    return active[-1]


def add_commands(commands: Any, served: argparse.ArgumentParser) -> None:
    """Declare them; `served` has the option that says where the services are."""
    ledger = commands.add_parser("ledger", help="show whether a run's ledger balances")
    ledger.add_argument("run_dir", help="such as runs/tiny_code-...")
    ledger.set_defaults(command=ledger_command)

    replay = commands.add_parser("replay", help="decide again what a run's schedule decided")
    replay.add_argument("run_dir", help="such as runs/tiny_code-...")
    replay.set_defaults(command=replay_command)

    logs = commands.add_parser("logs", help="show what was logged about a run")
    logs.add_argument("run_dir", help="such as runs/tiny_code-...")
    logs.add_argument("--lines", type=int, default=_LINES, help=f"the newest ({_LINES})")
    logs.set_defaults(command=logs_command)

    for action, purpose in _CONTROLS.items():
        control = commands.add_parser(action, parents=[served], help=purpose)
        control.add_argument("run_id", nargs="?", help="the active one, if left out")
        control.set_defaults(command=control_command, action=action)
