"""The router as a Serve application."""

from fastapi import FastAPI
from ray import serve

from services.peers import BusPeer, http_host
from services.router.config import RouterConfig
from services.router.http_app import build_http

_UNBOUNDED = 1_000_000
# Our own gate bounds the work; Serve's slots would also hold back health checks.
_DRAIN_S = 60.0


class Router:
    """Serves OpenAI's API and knows which replica has which request."""

    def __init__(self, config: RouterConfig) -> None:
        config.access.check(http_host(), service="router")
        self._config = config

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve on the replica's event loop; the lifespan does the rest."""
        return build_http(self._config, BusPeer())


def build(config: RouterConfig) -> serve.Application:
    """The application, to be mounted at the route prefix "/"."""
    deployment = serve.deployment(
        name="router",
        num_replicas=1,
        max_ongoing_requests=_UNBOUNDED,
        graceful_shutdown_timeout_s=_DRAIN_S,
        health_check_timeout_s=30.0,
        ray_actor_options={"num_cpus": config.num_cpus},
    )(serve.ingress()(Router))
    return deployment.bind(config)
