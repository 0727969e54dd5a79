"""The `millrace` command: it dispatches to the commands, and prints one line for an error."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console

from millrace_tools import chat, comparison, export, view
from millrace_tools.accept import command as accept
from millrace_tools.agents import command as agent
from millrace_tools.audit import command as audit
from millrace_tools.audit import try_command
from millrace_tools.cluster import replica, versions
from millrace_tools.command import FAILED, INTERRUPTED, INVALID, Function
from millrace_tools.demo import demo, init
from millrace_tools.deploy import check, wait
from millrace_tools.doctor import command as doctor
from millrace_tools.grade import command as grade
from millrace_tools.output import error_console, print_problem
from millrace_tools.run import chaos, control, ledger, logs, profile, replay, start, status
from millrace_tools.top import command as top
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.weights.replica_control import ControlFailed

COMMANDS = (
    *(check.check, wait.wait, chat.chat),
    *(start.run, status.status, control.stop, control.pause, control.unpause, control.checkpoint),
    profile.profile,
    *(ledger.ledger, replay.replay, logs.logs),
    *(versions.versions, replica.replica),
    *(export.export, grade.grade, doctor.doctor, view.view, chaos.chaos, top.top),
    *(comparison.compare_runs, comparison.report_runs),
    *(init.init, demo.demo, accept.accept),
    *(agent.agent_run, audit.audit, try_command.env),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 1 it failed, 2 bad input, 130 interrupted."""
    arguments = command_parser().parse_args(argv)
    function: Function = arguments.function
    try:
        exit_status = function(arguments, Console())
        sys.stdout.flush()
        return exit_status
    except BrokenPipeError:  # as by `| head`: the reader has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except InvalidInput as problem:
        print_problem(problem)
        return INVALID
    except (NotReady, ControlFailed) as problem:
        error_console().print(f"error: {problem}")
        return FAILED
    except KeyboardInterrupt:
        # CPython ends by the signal if it came within an `exec`, as of a dataclass at an import,
        # although it was caught; the next one has it forget that.
        exec("")
        return INTERRUPTED


def command_parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(
        prog="millrace", description="Reinforcement learning of language models on Ray."
    )
    installed = f"%(prog)s {version('millrace')}"
    parser.add_argument("--version", action="version", version=installed)
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
