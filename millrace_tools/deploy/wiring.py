"""Checks that the services of one deployment file will find each other.

They look each other up by application name (`services.peers`), and the orchestrator calls
the router at its address. Serve knows nothing of either.
"""

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel

from millrace_tools.capacity.machine import free_port
from services.protocol.errors import InvalidInput

SERVICES = (
    "weight_bus",
    "reward_service",
    "trainer",
    "rollout_server",
    "router",
    "orchestrator",
    "page",
)
_ROUTER_URL = "orchestrator.args.router_url"
_ROUTES = {
    "router": "/",
    "orchestrator": "/v1/runs",
    "page": "/page",
    "sandboxes": "/v1/sandboxes",
}
_MODULES = {f"services.{service}.app": service for service in SERVICES} | {
    "services.reward_service.workspace_api.app": "sandboxes"
}
"""Of the services, and of an application that a deployment may leave out."""


def check_place(name: str, import_path: str, route: str | None, *, source: str) -> None:
    """Refuse a service under a name or a route at which no other service looks for it.

    Raises:
        InvalidInput: the name is not that of the service, or the route is another one.
    """
    module, _, builder = import_path.replace(":", ".").rpartition(".")
    service = _MODULES.get(module) if builder == "build" else None
    if service is None:
        return
    if name != service:
        fix = f"Call it `{service}`: the other services look for it by that name."
        raise InvalidInput(f"{source}: applications[{name}].name", name, fix)
    wanted = _ROUTES.get(service)
    if wanted is not None and route != wanted:
        fix = f"Write `{wanted}`: clients and the other services expect it there."
        raise InvalidInput(f"{source}: applications[{name}].route_prefix", route, fix)


def check_addresses(configs: Mapping[str, BaseModel], schema: Any, *, source: str) -> None:
    """Refuse a router on the port of Serve's proxy, and an orchestrator that would miss it.

    Args:
        configs: arguments by application.
        schema: Serve's `ServeDeploySchema` of the file, which is slow to import here.
        source: the file.

    Raises:
        InvalidInput: the router's port is Serve's, or the orchestrator's `router_url` is not a
            URL, or is on this machine but has neither port.
    """
    if "router" not in configs:
        return
    serve, host = schema.http_options.port, schema.http_options.host
    own = getattr(configs["router"], "listen", None)
    if own and own.port == serve:
        fix = (
            "Serve's proxy has this port (http_options.port): give the proxy another one, such as "
            "8001. Clients use the router's."
        )
        raise InvalidInput(f"{source}: router.args.listen.port", own.port, fix)
    router_url = getattr(configs.get("orchestrator"), "router_url", None)
    if router_url is None:
        return
    ports = {serve} | ({own.port} if own is not None else set())
    url, wanted = _address(router_url, source)
    if (url.hostname == host or _is_here(url.hostname or "")) and wanted not in ports:
        listens = " and ".join(f"port {port}" for port in sorted(ports))
        fix = f"The router is at {listens} (router.args.listen.port, http_options.port)."
        raise InvalidInput(f"{source}: {_ROUTER_URL}", router_url, fix)


def check_several_nodes(configs: Mapping[str, BaseModel], schema: Any, *, source: str) -> None:
    """Refuse an orchestrator on several nodes that may not reach the router.

    Raises:
        InvalidInput: the orchestrator calls the router on its own node, which may have none.
    """
    router_url = getattr(configs.get("orchestrator"), "router_url", None)
    if router_url is None or "router" not in configs:
        return
    url, port = _address(router_url, source)
    if not _is_here(url.hostname or ""):
        return
    location = schema.proxy_location.value
    router, orchestrator = (
        getattr(configs[name], "node_resource", None) for name in ("router", "orchestrator")
    )
    if port == schema.http_options.port:
        if location != "EveryNode":
            fix = (
                "Write EveryNode: the orchestrator may run on any node and calls the router at "
                f"{router_url}, its own node's proxy."
            )
            raise InvalidInput(f"{source}: proxy_location", location, fix)
    elif router is None or router != orchestrator:
        fix = (
            f"The orchestrator calls the router at {router_url}, on its own node: give both the "
            "same `node_resource`, that of one node, such as head."
        )
        raise InvalidInput(f"{source}: orchestrator.args.node_resource", orchestrator, fix)


def _address(router_url: str, source: str) -> tuple[SplitResult, int]:
    try:
        url = urlsplit(router_url)
        return url, url.port or {"http": 80, "https": 443}[url.scheme]
    except (ValueError, KeyError):
        fix = "Write it like http://127.0.0.1:8000."
        raise InvalidInput(f"{source}: {_ROUTER_URL}", router_url, fix) from None


def arguments_of(content: Any) -> dict[str, Any]:
    """The arguments of each application in a deployment file's content, by its name."""
    return {one["name"]: one.setdefault("args", {}) for one in content["applications"]}


def move_to(content: Any, port: int) -> None:
    """Change a deployment file's content so that it is served at this port of this machine.

    Serve's own proxy gets a free port, which is for the services alone.
    """
    arguments = arguments_of(content)
    content["http_options"]["port"] = free_port()
    arguments["router"]["listen"]["port"] = port
    arguments["orchestrator"]["router_url"] = f"http://127.0.0.1:{port}"


def _is_here(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
