"""`millrace wait`: return when the services can be used."""

import argparse

from rich.console import Console

from millrace_tools.client.served import Served
from millrace_tools.command import SERVED, Commands, declare
from millrace_tools.deploy.bring_up import wait_until_running
from millrace_tools.output import print_line

_TIMEOUT_S = 300.0


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(commands, "wait", wait, "wait until the services are up", SERVED)
    default = f"seconds ({_TIMEOUT_S:g})"
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, help=default)


def wait(arguments: argparse.Namespace, console: Console) -> int:
    """Wait until the services can be used."""
    with Served(arguments.url) as served:
        wait_until_running(served, console, timeout_s=arguments.timeout)
        leased = served.leased()
    replicas = f"{leased} replica{'s' if leased != 1 else ''}"
    print_line(f"Ready at {served.url}, {replicas} leased.", console)
    return 0
