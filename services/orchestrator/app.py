"""The Serve application of the orchestrator; its route prefix is `/v1/runs`."""

from typing import Any

from fastapi import FastAPI
from ray import serve

from services.access.access_control import protect
from services.cluster_kv import ClusterValue
from services.observability import tracing
from services.open_files import raise_open_files
from services.orchestrator.api import http_api
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.context import Peers
from services.orchestrator.lifecycle.open_run import OpenRun
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.node_use import node_use
from services.peers import bus_peer, http_host, reward_peer, trainer_peer
from services.protocol.placement import NODE_RESOURCE_SHARE


class Orchestrator:
    """One replica: it owns the active run, and a second one could not see it."""

    def __init__(self, config: OrchestratorConfig) -> None:
        raise_open_files()
        config.access.check(http_host(), service="orchestrator")
        tracing.start(config.tracing, service="orchestrator")
        self._access = config.access
        open_run = OpenRun(ClusterValue("open_run"), returns=config.recoveries_in_row)
        self._runs = Runs(config, lambda: _peers(config), open_run)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """The HTTP API, once the replica's event loop runs; an open run is resumed."""
        await self._runs.resume_open_run()
        app = http_api(self._runs)
        protect(app, self._access, service="orchestrator")
        return app


def _peers(config: OrchestratorConfig) -> Peers:
    return Peers(
        trainer=trainer_peer(),
        reward=reward_peer(timeout_s=config.score_timeout_s),
        bus=bus_peer(),
        nodes=node_use,
    )


def build(config: OrchestratorConfig) -> serve.Application:
    """The application, to be deployed under `/v1/runs`."""
    actor: dict[str, Any] = {"num_cpus": config.num_cpus}
    if config.node_resource is not None:
        actor["resources"] = {config.node_resource: NODE_RESOURCE_SHARE}
    deployment = serve.deployment(
        name="orchestrator",
        num_replicas=1,
        # Requests here are few and short, but `stop` waits for the step in progress.
        max_ongoing_requests=1000,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=config.stop_timeout_s + 10,
        health_check_period_s=5,
        health_check_timeout_s=30,
        ray_actor_options=actor,
    )
    return deployment(serve.ingress()(Orchestrator)).bind(config)
