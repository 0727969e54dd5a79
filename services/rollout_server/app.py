"""The Serve application of the rollout server.

Requests do not pass through Serve: each replica serves vLLM's own OpenAI-compatible server
on its own address, which it registers with the weight bus.
"""

import math
import os
import time
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from services.memory import free_memory
from services.observability.garbage import heavy_imports
from services.open_files import raise_open_files
from services.peers import bus_peer
from services.protocol.placement import NODE_RESOURCE_SHARE, Node
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import engine_sockets, environment
from services.rollout_server.preflight import check_memory, check_model
from services.rollout_server.serve_log import serve_log_kept
from services.shared_devices import SharedDevices, lock_folder
from services.warm_workers import Stage, warmed

_UNBOUNDED = 1_000_000
WANTED = "millrace_wanted_replicas"
_TELL_S = 2.0


class RolloutServer:
    """A Serve replica that is one rollout server."""

    async def __init__(self, config: RolloutServerConfig) -> None:  # type: ignore[misc]
        """Start everything; the replica is ready when its engine is.

        Raises:
            InvalidInput: the model or the memory does not fit.
        """
        began_at = time.monotonic()
        raise_open_files()
        check_model(config)
        check_memory(config, available_bytes=free_memory())
        os.environ.update(environment(config))
        # Heavy, and only after the environment is set: Serve imports this module wherever
        # the application is built.
        with serve_log_kept(), heavy_imports():
            from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

            from services.rollout_server.engine.vllm_patches.pressure_gauges import PressureGauges
            from services.rollout_server.replica import RolloutReplica

        self._replica: RolloutReplica | None = RolloutReplica(
            config,
            replica_id=serve.get_replica_context().replica_id.unique_id,
            node=Node(
                ip=ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
                ray_id=ray.get_runtime_context().get_node_id(),
            ),
            bus=bus_peer(),
            on_end=_end_process,
            began_at=began_at,
        )
        loggers = [RayPrometheusStatLogger, PressureGauges]
        with serve_log_kept(), engine_sockets():
            await self._replica.start(stat_loggers=loggers, devices=_shared_devices(config))

    async def check_health(self) -> None:
        """See `RolloutReplica.check_health`."""
        if self._replica is not None:
            await self._replica.check_health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, in a thread: the orchestrator's wish."""
        return stats(self._replica.wanted_replicas if self._replica is not None else None)

    async def __del__(self) -> None:
        replica, self._replica = getattr(self, "_replica", None), None
        if replica is not None:
            await replica.stop()


def _shared_devices(config: RolloutServerConfig) -> SharedDevices | None:
    """The devices of this replica, where ranks of the trainer use them in turn with it."""
    if config.placement != "shared":
        return None
    if config.device == "cpu":
        return SharedDevices.claim(config.tensor_parallel_size, lock_folder())
    return SharedDevices(os.environ["CUDA_VISIBLE_DEVICES"].split(","), lock_folder())


def _end_process() -> None:
    """Serve replaces a process that is gone at once, but one that is ill only when several
    health checks have failed. Everything has been stopped, so nothing is left to unwind."""
    os._exit(1)


def stats(wanted: int | None) -> dict[str, float]:
    """What a replica tells Serve: the orchestrator's wish, as the weight bus passed it on."""
    return {WANTED: float(wanted or 0)}


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The largest wish that a replica has heard; the fewest allowed while there is none.

    A replica that has just come has heard nothing yet.
    """
    reported = (context.aggregated_metrics or {}).get(WANTED, {})
    wanted = math.ceil(max(reported.values(), default=0.0))
    return max(context.capacity_adjusted_min_replicas, wanted), context.policy_state or {}


def scaling(config: RolloutServerConfig) -> dict[str, Any]:
    """Options of the Serve deployment.

    The orchestrator has waited before it wishes, so Serve waits no longer.
    """
    if config.max_replicas is None:
        return {"num_replicas": config.replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=config.replicas,
            max_replicas=config.max_replicas,
            initial_replicas=config.replicas,
            metrics_interval_s=_TELL_S,
            look_back_period_s=2 * _TELL_S,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=AutoscalingPolicy(policy_function=wanted_replicas),  # type: ignore[no-untyped-call]
        )
    }


def resources(config: RolloutServerConfig) -> dict[str, Any]:
    """Options of the Serve deployment.

    An engine of several GPUs gets a placement group of one bundle: its worker processes are
    children of the replica's process and see the GPUs that Ray gave to that one, so all of
    them must be the replica's own, and on one node. Where no node has so many the replica
    waits, and `serve status` says for what.
    """
    mine: dict[str, Any] = {"num_cpus": config.num_cpus, "num_gpus": config.gpus}
    node = {config.node_resource: NODE_RESOURCE_SHARE} if config.node_resource else {}
    if node:
        mine["resources"] = node
    mine |= warmed(Stage.ENGINE)
    if config.gpus <= 1:
        return {"ray_actor_options": mine}
    return {
        "ray_actor_options": mine,
        "placement_group_bundles": [{"CPU": config.num_cpus, "GPU": float(config.gpus)} | node],
        "placement_group_strategy": "STRICT_PACK",
    }


def build(config: RolloutServerConfig) -> serve.Application:
    """The application "rollout_server": `config.replicas` engines, or more of them.

    Raises:
        InvalidInput: the model cannot be served as configured.
    """
    check_model(config)
    deployment: Any = serve.deployment(
        RolloutServer,
        name="rollout_server",
        max_ongoing_requests=_UNBOUNDED,
        health_check_period_s=1.0,
        health_check_timeout_s=60.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=30.0,
        **scaling(config),
        **resources(config),
    )
    return deployment.bind(config)
