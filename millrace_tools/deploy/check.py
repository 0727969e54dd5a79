"""`millrace check`: whether a deployment file can work, before anything starts."""

import argparse

from rich.console import Console

from millrace_tools.capacity.capacity import Nodes
from millrace_tools.capacity.demands import Bundle, resources_text, total
from millrace_tools.capacity.memory_check import check_memory, known_training
from millrace_tools.capacity.sizing import sizing_of
from millrace_tools.command import command, one_of, option
from millrace_tools.deploy.engine_arguments import check_engine_arguments
from millrace_tools.deploy.file_kind import KUBERNETES, kind_of
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.run_plan import Cluster, RunPlan
from millrace_tools.output import print_line
from services.file_system import FileSystem
from services.ledger.ledger_file import network_terms
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.protocol.yaml_text import load_yaml
from services.trainer.config import TrainerConfig

_COMPARED = ("CPU", "GPU")
_SPLIT = (
    "trainer.args.context_parallel does not divide ranks_per_node: some of the ranks that share "
    "rows are on different nodes, and each layer waits for the network"
)


@command(
    "check",
    option("file", help="such as deploy/cluster.yaml, or a RayService manifest"),
    one_of(
        option(
            "--nodes", metavar="FILE", help="the nodes that this `ray up` or RayService file makes"
        ),
        option(
            "--cluster",
            metavar="ADDRESS",
            nargs="?",
            const="",
            help="the nodes of the Ray cluster at this address (RAY_ADDRESS, or the one here)",
        ),
    ),
    option("--run", metavar="FILE", help="also a run file that is meant for it"),
    option("--figures", action="store_true", help="print memory, sequences, cores"),
    option(
        "--gpu-gib", type=float, default=80.0, help="memory of a GPU that trains or samples (80)"
    ),
)
def check(arguments: argparse.Namespace, console: Console) -> int:
    """Check a deployment file, alone or against the nodes it is for."""
    # Ray Serve takes seconds to import.
    from millrace_tools.deploy.deployment import Deployment
    from millrace_tools.deploy.node_types import nodes_of_ray_service
    from millrace_tools.deploy.ray_service import RayServiceFile
    from millrace_tools.deploy.wiring import SERVICES

    data = load_yaml(arguments.file)
    own: Nodes | None = None
    if kind_of(data) == KUBERNETES:
        manifest = RayServiceFile.check(data, source=arguments.file)
        deployment = Deployment.check(manifest.serve, source=arguments.file)
        own = nodes_of_ray_service(manifest)
    else:
        deployment = Deployment.read(arguments.file)
    nodes = _nodes(arguments) or own
    later = deployment.check_nodes(nodes) if nodes is not None else []
    run = None
    if arguments.run is not None:
        run = _checked_run(arguments.run, Cluster.of(deployment.configs, arguments.file))
    training = known_training(deployment.configs, run)
    if training is not None and not arguments.figures:
        check_memory(deployment.configs, training, arguments.gpu_gib, nodes)
    asked = check_engine_arguments(deployment.configs, source=arguments.file)  # slow: last
    print_line(f"{arguments.file} is good: {', '.join(deployment.names)}", console)
    if missing := [service for service in SERVICES if service not in deployment.names]:
        print_line(f"not in this file: {', '.join(missing)}", console)
    asked_for = total([part for one in deployment.demands for part in one.bundles * one.count])
    if nodes is not None or asked_for.get("GPU"):
        print_line(_compared(asked_for, nodes), console)
    for sentence in later:
        print_line(f"note: {sentence}", console)
    trainer = deployment.configs.get("trainer")
    if isinstance(trainer, TrainerConfig) and trainer.row_groups_leave_nodes:
        print_line(f"note: {_SPLIT}", console)
    if run is not None and (terms := network_terms(FileSystem.of(run.run_root))):
        print_line(f"note: run_root, seen from here: {terms}", console)
    if not asked:
        print_line("note: engine_args are unchecked, for there is no vLLM on this machine", console)
    if arguments.figures:
        sizing = sizing_of(deployment.configs, run, arguments.gpu_gib)
        for name, value in sizing.figures():
            print_line(f"{name}: {value}", console)
        for problem in sizing.problems():
            print_line(f"note: {problem}", console)
        check_memory(deployment.configs, sizing.training, arguments.gpu_gib, nodes)
    return 0


def _compared(asked: Bundle, nodes: Nodes | None) -> str:
    wanted = resources_text({name: asked.get(name, 0.0) for name in _COMPARED})
    if nodes is None:
        return f"asks for {wanted}; --nodes or --cluster compares it with nodes"
    have = resources_text({name: nodes.max_amount(name) for name in _COMPARED})
    return f"asks for {wanted}; the nodes have {have}"


def _checked_run(path: str, cluster: Cluster) -> RunConfig:
    """The run file.

    Raises:
        InvalidInput: the first problem that it would have on this deployment.
    """
    run = read_run_file(path)
    for problem in RunPlan(run=run, tasks=TaskTable(run), cluster=cluster).problems():
        raise InvalidInput(f"{path}: {problem.field}", problem.value, problem.fix)
    return run


def _nodes(arguments: argparse.Namespace) -> Nodes | None:
    from millrace_tools.deploy.node_types import live_nodes, nodes_of_file

    if arguments.nodes is not None:
        return nodes_of_file(arguments.nodes)
    if arguments.cluster is None:
        return None
    from millrace_tools.client.joined_cluster import joined_cluster

    with joined_cluster(arguments.cluster or None):
        nodes = live_nodes()
    if not nodes.types:
        raise InvalidInput("--cluster", arguments.cluster, "It has no node that is alive.")
    return nodes
