"""The Serve application of the reward service: a handle API, and HTTP where it has a route."""

import math
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from services.access.access_control import protect
from services.observability import tracing
from services.observability.garbage import never_collect_what_stays
from services.open_files import raise_open_files
from services.peers import http_host
from services.protocol.placement import NODE_RESOURCE_SHARE
from services.protocol.reward.reward_service import Score, ScoreJob
from services.reward_service.config import RewardServiceConfig
from services.reward_service.http_api import closed_api, http_api
from services.reward_service.scoring import Scoring

_QUEUED = "queued_cpu_s"
_TARGET_S = 10.0
"""Queued CPU-seconds of a replica at which another is worth its start."""

_UP_S, _DOWN_S = 10.0, 60.0
"""Seconds for which more, or fewer, replicas must be wanted: batches of answers come in bursts, and
a replica starts in seconds. Serve's own would keep an idle one for ten minutes."""


class RewardReplica:
    """Implements `services.protocol.reward.reward_service.RewardService` behind a Serve handle."""

    def __init__(self, config: RewardServiceConfig) -> None:
        raise_open_files()
        tracing.start(config.tracing, service="reward_service")
        self._config = config
        self._scoring = Scoring(config)
        config.check_cores()
        if config.access is not None:
            config.access.check(http_host(), service="reward_service")

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Start the sandbox, then the HTTP API, once the replica's event loop runs."""
        await self._scoring.start()
        never_collect_what_stays()
        if self._config.access is None:
            return closed_api()
        app = http_api(self._scoring)
        protect(app, self._config.access, service="reward_service", open_paths=("/health",))
        return app

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """Grade jobs, answers in the order of the jobs; never raises for what a job does."""
        return await self._scoring.score(jobs)

    async def sandboxes(self) -> int:
        """Those of this replica; `services.peers.reward_peer` counts the others."""
        return await self._scoring.sandboxes()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve: estimated CPU-seconds of work that wait here."""
        return {_QUEUED: self._scoring.sandbox.queued_s}

    async def check_health(self) -> None:
        """Called by Serve.

        Raises:
            RuntimeError: no sandbox can be had; Serve then replaces the replica.
        """
        if not self._scoring.healthy:
            raise RuntimeError("no sandbox can be started any more")

    def __del__(self) -> None:
        """Called by Serve at shutdown: no sandbox outlives its service."""
        self._scoring.close()


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """As many replicas as have `_TARGET_S` CPU-seconds of queued work each."""
    queued = (context.aggregated_metrics or {}).get(_QUEUED, {})
    wanted = math.ceil(sum(queued.values()) / _TARGET_S)
    return max(context.capacity_adjusted_min_replicas, wanted), context.policy_state or {}


def build(config: RewardServiceConfig) -> serve.Application:
    """The application, for `deploy/*.yaml` and `serve.run`."""
    scaling: dict[str, Any] = {"num_replicas": config.replicas}
    if config.max_replicas is not None:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=config.replicas,
                max_replicas=config.max_replicas,
                upscale_delay_s=_UP_S,
                downscale_delay_s=_DOWN_S,
                policy=AutoscalingPolicy(policy_function=wanted_replicas),  # type: ignore[no-untyped-call]
            )
        }
    node = {config.node_resource: NODE_RESOURCE_SHARE} if config.node_resource else {}
    deployment = serve.deployment(
        name="reward_service",
        max_ongoing_requests=100_000,  # the sandbox's own queue bounds the work
        graceful_shutdown_timeout_s=30,
        health_check_period_s=10,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": config.num_cpus, "resources": node},
        **scaling,
    )
    return deployment(serve.ingress()(RewardReplica)).bind(config)
