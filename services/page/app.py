"""The Serve application of the page; its route prefix is `/page`, and `/` leads there."""

from fastapi import FastAPI
from ray import serve

from services.access.access_control import protect
from services.open_files import raise_open_files
from services.page.cluster_run_store import ClusterRunStore
from services.page.config import PageConfig
from services.page.http_app import open_paths, page_app
from services.peers import bus_peer, http_host, local_proxy

PREFIX = "/page"


class Page:
    """One replica: it holds indexes of the runs that pages show."""

    def __init__(self, config: PageConfig) -> None:
        raise_open_files()
        config.access.check(http_host(), service="page")
        self._config = config

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """The HTTP application, once the replica's event loop runs."""
        url = self._config.router_url or local_proxy()
        store = ClusterRunStore(self._config, url, bus_peer())
        app = page_app(store, follow=store.follow)
        protect(app, self._config.access, service="page", open_paths=open_paths(PREFIX))
        return app


def build(config: PageConfig) -> serve.Application:
    """The application, to be deployed under `/page`."""
    deployment = serve.deployment(
        name="page",
        num_replicas=1,
        max_ongoing_requests=1000,  # each open page holds a stream
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=2,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": config.num_cpus},
    )
    return deployment(serve.ingress()(Page)).bind(config)
