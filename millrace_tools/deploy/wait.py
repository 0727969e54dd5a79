"""`millrace wait`: return when the services can be used."""

import argparse

from rich.console import Console

from millrace_tools.client.served import Served
from millrace_tools.command import SERVICES_URL, command, option
from millrace_tools.deploy.bring_up import wait_until_running
from millrace_tools.output import print_line


@command("wait", SERVICES_URL, option("--timeout", type=float, default=300.0, help="seconds (300)"))
def wait(arguments: argparse.Namespace, console: Console) -> int:
    """Wait until the services are up."""
    with Served(arguments.url) as served:
        wait_until_running(served.states, console, timeout_s=arguments.timeout)
        leased = served.leased()
    replicas = f"{leased} replica{'s' if leased != 1 else ''}"
    print_line(f"Ready at {served.url}, {replicas} leased.", console)
    return 0
