"""The shape of a command, and the options that several commands share."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from millrace_tools.client.runs_client import URL

FAILED, INVALID, INTERRUPTED = 1, 2, 130
"""Exit statuses."""

Function = Callable[[argparse.Namespace, Console], int]
"""Takes the arguments and a console; returns the exit status."""

Option = Callable[[Any], object]
"""Adds an argument to a parser."""


def option(*names: str, **settings: Any) -> Option:
    """An argument of a command, as `ArgumentParser.add_argument` takes it."""
    return lambda parser: parser.add_argument(*names, **settings)


def one_of(*options: Option) -> Option:
    """Options that exclude each other."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in options:
            each(group)

    return add


SERVICES_URL = option("--url", default=URL, help=f"where the router answers ({URL})")
RAY_ADDRESS = option("--address", help="of the Ray cluster (RAY_ADDRESS, or the one here)")
RUN_DIR = option("run_dir", help="such as runs/tiny_code-...")
ACTIVE_RUN = option("run_id", nargs="?", help="the active one, if left out")


@dataclass(frozen=True)
class Command:
    """A function with its name and options on the command line."""

    name: str
    function: Function
    options: tuple[Option, ...]

    def add_to(self, commands: Any) -> None:
        """Declare it; the first line of the function's docstring is its help.

        Args:
            commands: returned by `ArgumentParser.add_subparsers`; argparse does not name its type.
        """
        purpose = (self.function.__doc__ or "").partition("\n")[0].rstrip(".")
        parser = commands.add_parser(self.name, help=purpose[:1].lower() + purpose[1:])
        for add in self.options:
            add(parser)
        parser.set_defaults(function=self.function)


def command(name: str, *options: Option) -> Callable[[Function], Command]:
    """Decorate a function that is a command."""
    return lambda function: Command(name, function, options)
