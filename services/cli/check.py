"""`millrace check`: whether a deployment file can work, before anything starts."""

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from services.cli.claims import in_words, total
from services.cli.file_kind import KUBERNETES, kind_of
from services.cli.room import NodeType
from services.protocol.errors import InvalidInput
from services.protocol.strict import load_yaml


def add_check_command(commands: Any) -> None:
    """Declare it."""
    check = commands.add_parser(
        "check", help="check a deployment file, alone or against the nodes it is for"
    )
    check.add_argument("file", help="such as deploy/cluster.yaml, or a RayService manifest")
    against = check.add_mutually_exclusive_group()
    against.add_argument(
        "--nodes", metavar="FILE", help="the nodes that this `ray up` or RayService file makes"
    )
    against.add_argument(
        "--cluster",
        metavar="ADDRESS",
        nargs="?",
        const="",
        help="the nodes of the Ray cluster at this address (RAY_ADDRESS, or the one here)",
    )
    check.set_defaults(command=check_command)


def check_command(arguments: argparse.Namespace, console: Console) -> int:
    """Check a file; 0 if nothing in it is wrong."""
    # Ray Serve takes seconds to import.
    from services.cli.deployment import Deployment
    from services.cli.node_types import nodes_of_ray_service
    from services.cli.ray_service import RayServiceFile
    from services.cli.wiring import missing

    data = load_yaml(arguments.file)
    if kind_of(data) == KUBERNETES:
        manifest = RayServiceFile.check(data, source=arguments.file)
        deployment = Deployment.check(manifest.serve, source=arguments.file)
        nodes: Sequence[NodeType] = nodes_of_ray_service(manifest)
    else:
        deployment = Deployment.read(arguments.file)
        nodes = ()
    nodes = _nodes(arguments) or nodes
    later = deployment.check_nodes(nodes) if nodes else []
    _say(console, f"{arguments.file} is good: {', '.join(deployment.names)}")
    if left_out := missing(deployment.names):
        _say(console, f"not in this file: {', '.join(left_out)}")
    if nodes:
        asked = total([part for claim in deployment.claims for part in claim.all_bundles])
        have = total([node.resources for node in nodes for _ in range(node.count)])
        _say(console, f"asks for {in_words(asked)}; the nodes have {in_words(have)}")
    for sentence in later:
        _say(console, f"note: {sentence}")
    return 0


def _nodes(arguments: argparse.Namespace) -> Sequence[NodeType]:
    from services.cli.node_types import live_nodes, nodes_of_file

    if arguments.nodes is not None:
        return nodes_of_file(arguments.nodes)
    if arguments.cluster is None:
        return ()
    from services.cli.joined_cluster import JoinedCluster

    with JoinedCluster(arguments.cluster or None):
        nodes = live_nodes()
    if not nodes:
        raise InvalidInput("--cluster", arguments.cluster, "It has no node that is alive.")
    return nodes


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
