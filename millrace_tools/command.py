"""The declaration of a command, and the options that several commands share."""

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console

from millrace_tools.client.runs_client import URL

Commands = Any
"""What `ArgumentParser.add_subparsers` returns; argparse gives it no public name."""

FAILED, INVALID, INTERRUPTED = 1, 2, 130
"""Exit statuses."""

Function = Callable[[argparse.Namespace, Console], int]

SERVED = argparse.ArgumentParser(add_help=False)
"""Options of commands that call the services over HTTP."""
SERVED.add_argument("--url", default=URL, help=f"where the router answers ({URL})")

JOINED = argparse.ArgumentParser(add_help=False)
"""Options of commands that join the Ray cluster."""
JOINED.add_argument("--address", help="of the Ray cluster (RAY_ADDRESS, or the one here)")


def declare(
    commands: Commands,
    name: str,
    function: Function,
    purpose: str,
    *shared: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """Add a command; returns its parser for more arguments.

    Args:
        commands: to be added to.
        name: on the command line.
        function: takes the arguments and a console; returns the exit status.
        purpose: one line of help.
        shared: `SERVED`, `JOINED` or both.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, parents=shared, help=purpose)
    parser.set_defaults(function=function)
    return parser
