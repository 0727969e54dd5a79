"""`millrace run --dry-run`: explain what a run would do, without a cluster."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace_tools.deploy.run_plan import Cluster, RunPlan
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig


def explain(config: RunConfig, deployment: str | None, console: Console) -> list[InvalidInput]:
    """Print the plan of a run; returns the problems that it would have.

    Raises:
        InvalidInput: the deployment file cannot be used.
    """
    cluster = None
    if deployment is not None:
        # Ray Serve takes seconds to import; only a deployment file needs it.
        from millrace_tools.deploy.deployment import Deployment

        cluster = Cluster.of(Deployment.read(deployment).configs, deployment)
    plan = RunPlan(run=config, tasks=TaskTable(config), cluster=cluster)
    table = Table.grid(padding=(0, 2))
    for name, value in plan.figures():
        table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    console.print(table)
    if cluster is None:
        console.print("--deployment FILE also checks the run against the services of that file.")
    return list(plan.problems())
