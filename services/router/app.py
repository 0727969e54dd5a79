"""The router as a Serve application."""

import os
from functools import partial
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from services.observability import tracing
from services.observability.garbage import collect_rarely
from services.open_files import raise_open_files
from services.peers import (
    application_ends,
    bus_peer,
    http_host,
    local_proxy,
    replica_runs,
    replica_states,
    sessions_peer,
)
from services.protocol.placement import NODE_RESOURCE_SHARE
from services.router.config import RouterConfig
from services.router.http_app import RouterNode, build_http
from services.router.listener.listening_socket import InheritedListeningSocket
from services.router.placement.membership import TableSource
from services.router.sharing.sharing import TableActorPoint
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.shared_sessions import SharedSessions

_ROUTER = "router"
_UNBOUNDED = 1_000_000
# The calls of a session reach one router while the number of routers stays, which knows its
# home without an exchange. Without a session any router will do.
_BY_SESSION = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# Our own gate bounds the work; Serve's slots would also hold back health checks.
_DRAIN_S = 60.0
_RECORDS_DRAIN_S = 2.0
_RECORDS_CPUS = 0.5
"""Of the process with the recorded sessions. What takes longer there is a long poll, which its
client repeats; all other calls wait until the next process is up."""


class Router:
    """Serves OpenAI's API and knows which replica has which request."""

    def __init__(self, config: RouterConfig, sessions: DeploymentHandle[Any] | None = None) -> None:
        raise_open_files()
        config.access.check(http_host(), service="router")
        tracing.start(config.tracing, service="router")
        collect_rarely()  # the process is the router's alone
        self._config, self._sessions = config, sessions

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve on the replica's event loop; the lifespan does the rest."""
        point = TableActorPoint(self._config) if self._config.replicas > 1 else None
        sessions = None
        if self._sessions is not None:
            own = serve.get_replica_context().replica_tag
            sessions = SharedSessions(self._config, sessions_peer(self._sessions), own)
        return build_http(self._config, self.bus(), point, sessions, self._node())

    def bus(self) -> TableSource:
        """Where the member table comes from."""
        return bus_peer()

    def _node(self) -> RouterNode | None:
        if self._config.listen is None:
            return None
        return RouterNode(
            port=InheritedListeningSocket(
                ray.get_runtime_context().get_node_id(),
                owner=int(os.environ["RAY_RAYLET_PID"]),  # which Ray gives to its workers
            ),
            proxy=local_proxy(),
            ending=application_ends,
            runs=replica_runs,
        )


class RecordedSessions(Sessions):
    """The records of all routers, in a process of their own."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config, partial(replica_states, _ROUTER))


def build(config: RouterConfig) -> serve.Application:
    """The application, to be mounted at the route prefix "/"."""
    actor: dict[str, Any] = {"num_cpus": config.num_cpus}
    if config.node_resource is not None:
        actor["resources"] = {config.node_resource: NODE_RESOURCE_SHARE}
    routing: dict[str, Any] = {}
    if config.replicas > 1:
        routing["request_router_config"] = RequestRouterConfig(
            request_router_class=_BY_SESSION  # type: ignore[arg-type]  # Ray names a wrong type
        )
    deployment = serve.deployment(
        name=_ROUTER,
        num_replicas=config.replicas,
        max_ongoing_requests=_UNBOUNDED,
        graceful_shutdown_timeout_s=_DRAIN_S,
        health_check_timeout_s=30.0,
        # With a port of their own a new router is up before the old one goes.
        max_surge_percent=100 if config.listen is not None else 0,
        ray_actor_options=actor,
        **routing,
    )(serve.ingress()(Router))
    if config.replicas == 1 and config.sessions_dir is None:
        return deployment.bind(config)
    # Any router may get a call of a session, or be asked for it. And only one process at a time
    # can have the folder: a new router is up before the old one goes.
    records = serve.deployment(
        name="sessions",
        max_ongoing_requests=_UNBOUNDED,
        graceful_shutdown_timeout_s=_RECORDS_DRAIN_S,
        health_check_timeout_s=30.0,
        # It fits beside bus and page into the core that files of `deploy` leave to them.
        ray_actor_options={"num_cpus": min(config.num_cpus, _RECORDS_CPUS)},
    )(RecordedSessions)
    return deployment.bind(config, records.bind(config))
