"""The resources that the applications of a deployment file ask of Ray.

Serve keeps those of a deployment in private attributes, and merges the file's own `deployments`
into them only on the cluster; both are read here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from ray.serve._private.build_app import BuiltApplication
from ray.serve.deployment import Deployment as ServeDeployment
from ray.serve.schema import ServeApplicationSchema

from millrace_tools.capacity.demands import Bundle, ResourceDemand
from services.trainer.config import TrainerConfig


def replica_demands(
    application: ServeApplicationSchema, built: BuiltApplication, config: BaseModel
) -> list[ResourceDemand]:
    """Demands of an application's replicas, those of the ingress deployment first."""
    overrides = {
        deployment.name: deployment.model_dump(exclude_unset=True)
        for deployment in application.deployments
    }
    first = built.ingress_deployment_name
    deployments = sorted(built.deployments, key=lambda deployment: deployment.name != first)
    return [
        _demand(application.name, deployment, overrides.get(deployment.name, {}), config)
        for deployment in deployments
    ]


def rank_demands(config: BaseModel | None) -> list[ResourceDemand]:
    """Demands of the trainer's ranks, which its replica starts as actors."""
    if not isinstance(config, TrainerConfig):
        return []
    bundles = config.rank_bundles
    setting = "world_size" if config.ranks_per_node is None else "ranks_per_node"
    return [
        ResourceDemand(
            application="trainer",
            deployment=None,
            owner=f"trainer.args.{setting}",
            count=len(bundles),
            max_count=len(bundles),
            bundles=bundles[:1],
        )
    ]


def _demand(
    application: str, made: ServeDeployment, override: Mapping[str, Any], config: BaseModel
) -> ResourceDemand:
    count, max_count = _replicas(made, override)
    owner = f"{application}.deployments[{made.name}].num_replicas"
    if "num_replicas" not in override and "replicas" in type(config).model_fields:
        owner = f"{application}.args.replicas"
    strategy, bundles = _placement(made, override)
    return ResourceDemand(
        application=application,
        deployment=made.name,
        owner=owner,
        count=count,
        max_count=max_count,
        bundles=tuple(bundles),
        surge=_surge(made, override, count),
        strategy=strategy,
    )


def _replicas(made: ServeDeployment, override: Mapping[str, Any]) -> tuple[int, int]:
    """The number at the start, and the maximum."""
    number = override.get("num_replicas")
    scaling = override.get("autoscaling_config")
    if scaling is None and number is None:
        scaling = made._deployment_config.autoscaling_config
    if isinstance(scaling, BaseModel):
        scaling = scaling.model_dump()
    if not scaling and number == "auto":
        scaling = {"min_replicas": 1, "max_replicas": 100}  # Serve's own for `auto`
    if scaling:
        fewest = scaling.get("min_replicas", 1)
        return scaling.get("initial_replicas") or fewest, scaling.get("max_replicas", 1)
    count = int(made.num_replicas or 1) if number is None else int(number)
    return count, count


def _surge(made: ServeDeployment, override: Mapping[str, Any], count: int) -> int:
    """Replicas that Serve starts beside `count` others to replace them, rounded up as it does."""
    percent = override.get("max_surge_percent", made._deployment_config.max_surge_percent)
    return (int(percent) * count + 99) // 100


def _placement(made: ServeDeployment, override: Mapping[str, Any]) -> tuple[str, Sequence[Bundle]]:
    """Strategy and bundles of one replica; without bundles the replica's own resources."""
    bundles = override.get("placement_group_bundles", made._replica_config.placement_group_bundles)
    if bundles:
        theirs = made._replica_config.placement_group_strategy
        return override.get("placement_group_strategy", theirs) or "PACK", bundles
    options = override.get("ray_actor_options", made.ray_actor_options) or {}
    asked: dict[str, float] = dict(options.get("resources") or {})
    cpus = options.get("num_cpus")
    asked["CPU"] = 1.0 if cpus is None else float(cpus)  # Serve's own
    asked["GPU"] = float(options.get("num_gpus") or 0)
    if options.get("memory"):
        asked["memory"] = float(options["memory"])
    return "PACK", [asked]
