"""The Serve application of workspaces; its route prefix is `/v1/sandboxes`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from ray import serve
from ray.util import get_node_ip_address

from services.access.access_control import protect
from services.observability import tracing
from services.observability.garbage import never_collect_what_stays
from services.open_files import raise_open_files
from services.peers import http_host, replica_states, reward_peer
from services.protocol.placement import NODE_RESOURCE_SHARE
from services.protocol.reward.reward_service import RewardService
from services.reward_service.workspace_api.forwarding import OwnerForwarder, Peers
from services.reward_service.workspace_api.grading import Grading
from services.reward_service.workspace_api.http_api import http_api
from services.reward_service.workspace_api.mcp_route import mcp_app, mcp_routes
from services.reward_service.workspace_api.peer_listener import PeerListener
from services.reward_service.workspace_api.replica_table import ClusterReplicaStore, ReplicaTable
from services.reward_service.workspace_api.service import WorkspaceService
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces

_GRACE_S = 60.0
_SERVICE = "sandboxes"


class WorkspaceReplica:
    """One replica: it has the workspaces that it opened, and they end with it."""

    def __init__(self, config: WorkspacesConfig) -> None:
        raise_open_files()
        config.access.check(http_host(), service=_SERVICE)
        tracing.start(config.tracing, service=_SERVICE)
        self._config = config

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """The HTTP API, once the replica's event loop runs."""
        config, name = self._config, serve.get_replica_context().replica_tag
        workspaces = Workspaces(config, name)
        await workspaces.start()
        never_collect_what_stays()
        listener = PeerListener(name, config.host or get_node_ip_address())
        table = ReplicaTable(listener.address, ClusterReplicaStore(), _replicas)
        peers = Peers(table, connect_s=config.connect_s)
        reward = reward_peer(timeout_s=config.grade_deadline_s)
        app = replica_app(workspaces, config, reward, peers=peers, listener=listener)
        protect(app, config.access, service=_SERVICE)
        return app


def replica_app(
    workspaces: Workspaces,
    config: WorkspacesConfig,
    reward: RewardService,
    *,
    peers: Peers,
    listener: PeerListener,
) -> FastAPI:
    """The application of a replica: its own workspaces, and the way to those of the others.

    What others pass on comes to `listener`, which knows them; keys are asked for here alone.
    """
    grading = Grading(workspaces, reward, config)
    service = WorkspaceService(config=config, workspaces=workspaces, grading=grading, peers=peers)

    mcp = mcp_app(workspaces, config, replica=peers.table.own.name)
    routes = mcp_routes(mcp)

    @asynccontextmanager
    async def joined() -> AsyncIterator[None]:
        await listener.start(http_api(service, routes=routes))
        try:
            await peers.table.register()
            async with mcp.running():
                yield
        finally:
            await peers.table.leave()
            await listener.stop()
            await peers.close()
            await workspaces.aclose()

    app = http_api(service, routes=routes, life=joined())
    app.add_middleware(OwnerForwarder, peers=peers, config=config)
    return app


async def _replicas() -> set[str] | None:
    states = await replica_states()
    return None if states is None else set(states)


def build(config: WorkspacesConfig) -> serve.Application:
    """The application "sandboxes", to be deployed under `/v1/sandboxes`."""
    node = {config.node_resource: NODE_RESOURCE_SHARE} if config.node_resource else {}
    deployment = serve.deployment(
        name="sandboxes",
        num_replicas=config.replicas,
        max_ongoing_requests=100_000,  # quotas and each workspace's queue bound the work
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=_GRACE_S,
        health_check_period_s=10,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": config.num_cpus, "resources": node},
    )
    return deployment(serve.ingress()(WorkspaceReplica)).bind(config)
