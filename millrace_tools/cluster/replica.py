"""`millrace replica`: list the rollout servers, or have one pause, sleep, end its requests, ..."""

import argparse
import asyncio

from rich.console import Console

from millrace_tools.command import RAY_ADDRESS, command, option
from millrace_tools.output import print_items, print_line
from services.protocol.weights.replica_control import OPERATOR_ACTIONS, Hold, check_control

_CONTROL_S = 120.0  # a commit may come first
_COLUMNS = {
    "replica": lambda member: member.replica_id,
    "state": lambda member: member.state,
    "version": lambda member: member.committed_version,
    "leased": lambda member: member.leased,
    "address": lambda member: member.address,
    "last error": lambda member: member.last_error,
}


@command(
    "replica",
    RAY_ADDRESS,
    option("replica_id", nargs="?", help="without it, all are listed"),
    option("action", nargs="?", help=", ".join(OPERATOR_ACTIONS)),
    option("--level", type=int, help="of sleep: 1 keeps the weights, 2 drops them"),
)
def replica(arguments: argparse.Namespace, console: Console) -> int:
    """List the replicas, or control one of them."""
    replica_id, action, level = arguments.replica_id, arguments.action or "", arguments.level
    if replica_id is not None:  # before seconds go into joining
        check_control(action, level)
    from millrace_tools.client.joined_cluster import joined_cluster
    from services.peers import bus_peer

    with joined_cluster(arguments.address):
        if replica_id is None:
            members = asyncio.run(bus_peer().watch(-1, 0.0)).members
            if members:
                print_items(members, _COLUMNS, console)
            else:
                console.print("No rollout server is registered.")
            return 0
        done = asyncio.run(bus_peer().control(replica_id, action, level, _CONTROL_S))
    held = "" if done.held is Hold.NONE else f"; it is {done.held}"
    print_line(f"{done.replica_id}: {action} done in {done.seconds:.2f} s{held}", console)
    return 0
