"""Whether the services of one deployment file will find each other.

They look each other up by application name (`services.peers`), and the orchestrator calls
the router at its address. Serve knows nothing of either.
"""

import ipaddress
import re
import socket
from typing import Any
from urllib.parse import urlsplit

from services.cli.machine import free_port
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
_ROUTES = {"router": "/", "orchestrator": "/v1/runs", "page": "/page"}
_BUILDER = re.compile(r"services\.(\w+)\.app[.:]build")


def check_place(name: str, import_path: str, route: str | None, *, source: str) -> None:
    """Refuse a service under a name or a route at which nobody looks for it.

    Raises:
        InvalidInput: the name is not that of the service, or the route is another one.
    """
    builder = _BUILDER.fullmatch(import_path)
    if builder is None or builder[1] not in SERVICES:
        return
    service = builder[1]
    if name != service:
        fix = f"Call it `{service}`: the other services look for it by that name."
        raise InvalidInput(f"{source}: applications[{name}].name", name, fix)
    wanted = _ROUTES.get(service)
    if wanted is not None and route != wanted:
        fix = f"Write `{wanted}`: clients and the other services expect it there."
        raise InvalidInput(f"{source}: applications[{name}].route_prefix", route, fix)


def check_router_url(router_url: str, host: str | None, ports: set[int], *, source: str) -> None:
    """Refuse an address of the router that is on this machine, but at none of the `ports`.

    Raises:
        InvalidInput: its port is neither Serve's nor the router's own, or it is no address.
    """
    field = f"{source}: orchestrator.args.router_url"
    try:
        url = urlsplit(router_url)
        wanted = url.port or {"http": 80, "https": 443}[url.scheme]
    except (ValueError, KeyError):
        fix = "Write it like http://127.0.0.1:8000."
        raise InvalidInput(field, router_url, fix) from None
    here = url.hostname == host or _is_here(url.hostname or "")
    if here and wanted not in ports:
        answers = " and ".join(f"port {port}" for port in sorted(ports))
        fix = f"The router is at {answers} (http_options.port, router.args.listen.port)."
        raise InvalidInput(field, router_url, fix)


def check_proxies(router_url: str, location: str, *, source: str) -> None:
    """Refuse an orchestrator on several nodes that could be where no proxy listens.

    Raises:
        InvalidInput: it calls the router on its own node, and not every node has a proxy.
    """
    if location != "EveryNode" and _is_here(urlsplit(router_url).hostname or ""):
        fix = (
            "Write EveryNode: the orchestrator may run on any node and calls the router at "
            f"{router_url}, its own node's proxy."
        )
        raise InvalidInput(f"{source}: proxy_location", location, fix)


def move_to(content: Any, port: int) -> None:
    """Change a deployment file's content so that it is served at this port of this machine.

    Serve's own proxy gets a free port, which nobody needs to know.
    """
    arguments = {one["name"]: one.setdefault("args", {}) for one in content["applications"]}
    content["http_options"]["port"] = free_port()
    arguments["router"]["listen"]["port"] = port
    arguments["orchestrator"]["router_url"] = f"http://127.0.0.1:{port}"


def missing(names: list[str]) -> list[str]:
    """The services that a file leaves out, which can be meant."""
    return [service for service in SERVICES if service not in names]


def _is_here(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
