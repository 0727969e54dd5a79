"""Checks that compare the nodes of a cluster."""

from collections import Counter
from collections.abc import Sequence

from millrace_tools.doctor.checks import Finding, fault, good, note
from millrace_tools.doctor.facts import Node

_SKEW_S, _LARGE_SKEW_S = 0.5, 5.0


def answers(nodes: Sequence[Node]) -> Finding:
    """Every node could examine itself."""
    silent = [f"{node.address}: {node.problem}" for node in nodes if node.machine is None]
    if silent:
        fix = "Install the same Millrace on every node, then look at `ray status`."
        return fault("; ".join(silent), fix)
    return good(f"{len(nodes)} nodes")


def versions(nodes: Sequence[Node]) -> Finding:
    """All nodes have the same Python, Ray, engine and torch."""
    by_node = {
        node.address: (
            f"Python {node.machine.python.rpartition('.')[0]}",
            *(f"{one.name} {one.installed or '(none)'}" for one in node.machine.packages),
        )
        for node in nodes
        if node.machine is not None
    }
    if len(set(by_node.values())) < 2:
        return good("the same on all nodes")
    usual = Counter(by_node.values()).most_common(1)[0][0]
    others = [
        f"{address}: " + ", ".join(part for part in found if part not in usual)
        for address, found in by_node.items()
        if found != usual
    ]
    fix = f"Install there what the other nodes have: {', '.join(usual)}."
    return fault("; ".join(others), fix)


def clocks(nodes: Sequence[Node]) -> Finding:
    """Clocks agree, within the error of the measurement.

    Millrace decides nothing by the clock of another node, but operators compare times in logs
    and traces.
    """
    seen = [node for node in nodes if node.machine is not None]
    if not seen:
        return good("no clock to compare")
    first = min(seen, key=lambda node: node.clock_ahead_s)
    last = max(seen, key=lambda node: node.clock_ahead_s)
    skew = last.clock_ahead_s - first.clock_ahead_s
    sure = skew - first.clock_doubt_s - last.clock_doubt_s
    fix = "Synchronise both: `apt-get install chrony`, then `chronyc makestep`."
    found = f"{last.address} is {skew:.2f} s ahead of {first.address}"
    if sure > _LARGE_SKEW_S:
        return fault(found, fix)
    if sure > _SKEW_S:
        return note(found, fix)
    return good(f"within {skew:.3f} s of each other")


def interfaces(nodes: Sequence[Node]) -> Finding:
    """Network interfaces that `weight_bus.interfaces` can name."""
    found = [set(node.machine.gpus.interfaces) for node in nodes if node.machine is not None]
    shared = set.intersection(*found) - {"lo"} if found else set()
    if len(found) > 1 and not shared:
        fix = "weight_bus.interfaces cannot be set, and each node uses its address: rename them."
        return note("no name is the same on all nodes", fix)
    return good(f"on all nodes: {', '.join(sorted(shared)) or 'none but loopback'}")


CHECKS = {"nodes": answers, "versions": versions, "clocks": clocks, "interfaces": interfaces}
"""Every check of a whole cluster."""
