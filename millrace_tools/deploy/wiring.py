"""Whether the services of one deployment file will find each other.

They look each other up by application name (`services.peers`), and the orchestrator calls
the router at its address. Serve knows nothing of either.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

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


def check_ports(serve: int, listen: int | None, *, source: str) -> None:
    """Refuse a router that would listen where Serve's proxy does.

    Raises:
        InvalidInput: both have the same port.
    """
    if listen == serve and listen:
        fix = (
            "Serve's proxy has this port (http_options.port): give the proxy another one, such as "
            "8001. Clients use the router's."
        )
        raise InvalidInput(f"{source}: router.args.listen.port", listen, fix)


def check_router_url(router_url: str, host: str | None, ports: set[int], *, source: str) -> None:
    """Refuse an address of the router that is on this machine, but at none of the `ports`.

    Raises:
        InvalidInput: its port is neither Serve's nor the router's own, or it is no address.
    """
    url, wanted = _address(router_url, source)
    here = url.hostname == host or _is_here(url.hostname or "")
    if here and wanted not in ports:
        answers = " and ".join(f"port {port}" for port in sorted(ports))
        fix = f"The router is at {answers} (router.args.listen.port, http_options.port)."
        raise InvalidInput(f"{source}: {_ROUTER_URL}", router_url, fix)


def check_several_nodes(
    router_url: str, location: str, places: Mapping[str, str | None], *, serve: int, source: str
) -> None:
    """Refuse an orchestrator on several nodes that could be where it does not reach the router.

    Args:
        router_url: where the orchestrator calls it.
        location: which nodes have a proxy of Serve's.
        places: `node_resource` of router and orchestrator.
        serve: port of Serve's proxies.
        source: the file.

    Raises:
        InvalidInput: the orchestrator calls the router on its own node, which may have none.
    """
    url, port = _address(router_url, source)
    if not _is_here(url.hostname or ""):
        return
    if port == serve:
        if location != "EveryNode":
            fix = (
                "Write EveryNode: the orchestrator may run on any node and calls the router at "
                f"{router_url}, its own node's proxy."
            )
            raise InvalidInput(f"{source}: proxy_location", location, fix)
    elif places["router"] is None or places["router"] != places["orchestrator"]:
        fix = (
            f"The orchestrator calls the router at {router_url}, on its own node: give both the "
            "same `node_resource`, that of one node, such as head."
        )
        field = f"{source}: orchestrator.args.node_resource"
        raise InvalidInput(field, places["orchestrator"], fix)


def _address(router_url: str, source: str) -> tuple[SplitResult, int]:
    try:
        url = urlsplit(router_url)
        return url, url.port or {"http": 80, "https": 443}[url.scheme]
    except (ValueError, KeyError):
        fix = "Write it like http://127.0.0.1:8000."
        raise InvalidInput(f"{source}: {_ROUTER_URL}", router_url, fix) from None


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
