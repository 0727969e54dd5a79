"""`millrace doctor`: a table in a terminal, JSON elsewhere; status 1 on a fault."""

import argparse
import json
import logging
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace_tools.command import FAILED, RAY_ADDRESS, command, option
from millrace_tools.doctor import across, checks
from millrace_tools.doctor.checks import Finding, Grade
from millrace_tools.doctor.facts import Machine, Node
from services.protocol.errors import InvalidInput

_STYLES = {Grade.GOOD: "green", Grade.NOTE: "yellow", Grade.FAULT: "bold red"}

Findings = dict[str, Finding]


@command(
    "doctor",
    RAY_ADDRESS,
    option("--cluster", action="store_true", help="look at every node of a cluster"),
    option("--runs", default=".", help="where runs will be written (here)"),
)
def doctor(arguments: argparse.Namespace, console: Console) -> int:
    """Show what this machine or cluster can do, and the fix for each fault.

    Raises:
        InvalidInput: an address without `--cluster`, or as `look_at_nodes` does.
    """
    if arguments.address is not None and not arguments.cluster:
        raise InvalidInput("--address", arguments.address, "It needs --cluster.")
    logging.getLogger("millrace.reward_service").setLevel(logging.WARNING)
    found: dict[str, Findings] = {"cluster": {}}
    # Only this command needs the probes, and Ray takes a second to import.
    if arguments.cluster:
        from millrace_tools.doctor.nodes import look_at_nodes

        nodes = look_at_nodes(arguments.address, arguments.runs)
        found["cluster"] = {name: check(nodes) for name, check in across.CHECKS.items()}
    else:
        from millrace_tools.doctor.probes import observe

        machine = observe(arguments.runs)
        nodes = [Node(address=machine.host, machine=machine)]
    for node in nodes:
        if node.machine is not None:
            found[node.address] = examine(node.machine)
    faulty = any(one.grade is Grade.FAULT for each in found.values() for one in each.values())
    if console.is_terminal:
        for place, findings in found.items():
            show(place, findings, console)
    else:
        print(json.dumps(to_jsonable_python(_report(nodes, found, faulty)), indent=2))
    return FAILED if faulty else 0


def examine(machine: Machine) -> Findings:
    """Every check of one machine."""
    return {name: check(machine) for name, check in checks.CHECKS.items()}


def show(place: str, findings: Findings, console: Console) -> None:
    """Print a line for each check, and one more for each fix."""
    if not findings:
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title=place, pad_edge=False)
    table.title_justify, table.title_style = "left", "bold"
    for name, finding in findings.items():
        text = Text(finding.found, overflow="fold")
        if finding.fix:
            text.append(f"\n{finding.fix}", style="cyan")
        table.add_row(Text(finding.grade, style=_STYLES[finding.grade]), name, text)
    console.print(table, highlight=False)


def _report(nodes: list[Node], found: dict[str, Findings], faulty: bool) -> dict[str, Any]:
    """Findings and the facts behind them."""
    places = [
        {
            "address": node.address,
            "problem": node.problem,
            "findings": found.get(node.address, {}),
            "facts": node.machine,
        }
        for node in nodes
    ]
    return {"healthy": not faulty, "cluster": found["cluster"], "nodes": places}
