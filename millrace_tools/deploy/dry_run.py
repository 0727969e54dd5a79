"""`millrace run --dry-run`: explain what a run would do, without a cluster."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace_tools.deploy.run_plan import Cluster, RunPlan
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig


def explain(config: RunConfig, deployment: str | None, console: Console) -> list[InvalidInput]:
    """Print the plan of a run; returns what cannot go well.

    Raises:
        InvalidInput: the deployment file cannot be used.
    """
    cluster = None if deployment is None else _cluster(deployment)
    plan = RunPlan(run=config, tasks=TaskTable(config), cluster=cluster)
    table = Table.grid(padding=(0, 2))
    for name, value in plan.figures():
        table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    console.print(table)
    if cluster is None:
        console.print("With --deployment FILE the services of that file are looked at too.")
    return list(plan.problems())


def _cluster(path: str) -> Cluster:
    # Ray Serve takes seconds to import; only a deployment file needs it.
    from millrace_tools.deploy.deployment import Deployment

    return cluster_of(Deployment.read(path).configs, path)


def cluster_of(configs: Mapping[str, Any], path: str) -> Cluster:
    """What a run meets of the services of a deployment file.

    Args:
        configs: arguments by application.
        path: the deployment file, for messages.

    Raises:
        InvalidInput: the deployment file leaves one of them out.
    """
    names = {"rollout": "rollout_server"}
    parts = {}
    for field in Cluster.__dataclass_fields__:
        name = names.get(field, field)
        if name not in configs:
            fix = "The file has no such application, so it says nothing about a run."
            raise InvalidInput(f"{path}: applications", name, fix)
        parts[field] = configs[name]
    return Cluster(**parts)
