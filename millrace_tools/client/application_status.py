"""The status of the services, seen from outside their cluster.

The router and the orchestrator are asked at the address of clients. Ray's dashboard, where there
is one, knows the applications behind them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from millrace_tools.client.runs_client import RUNS
from millrace_tools.client.services_url import http_client

_TIMEOUT_S = 2.0  # Serve holds requests back for applications that are still starting
_DASHBOARD = "http://127.0.0.1:8265"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ApplicationStatus:
    """An application as Serve reports it, or as it looks over HTTP.

    Attributes:
        status: `NOT_STARTED`, `DEPLOYING`, `RUNNING`, `DEPLOY_FAILED`, `UNHEALTHY`, ...
        running: replicas that are up.
        message: why it is not running.
    """

    name: str
    status: str
    running: int = 0
    message: str = ""

    @property
    def failed(self) -> bool:
        """It will not come up by itself."""
        return self.status in ("DEPLOY_FAILED", "DELETING")


def leased_replicas(url: str) -> int:
    """Replicas that the router may use now; 0 where no router answers."""
    health, _ = _ask(url, "/health")
    return health.get("leased_replicas", 0) if isinstance(health, dict) else 0


def application_states(url: str) -> list[ApplicationStatus]:
    """The status of each application; only the dashboard knows those without an address."""
    outside = _from_outside(url)
    known = {state.name: state for state in _from_dashboard(url)}
    for state in outside:
        if not (state.name in known and known[state.name].failed):
            known[state.name] = state
    return list(known.values())


def _from_outside(url: str) -> list[ApplicationStatus]:
    health, no_health = _ask(url, "/health")
    runs, no_runs = _ask(url, RUNS)
    leased = health.get("leased_replicas") if isinstance(health, dict) else None
    return [
        _answering("rollout_server", leased or 0, "no replica has weights and a lease"),
        _answering("router", int(leased is not None), no_health),
        _answering("orchestrator", int(isinstance(runs, list)), no_runs),
    ]


def _ask(url: str, path: str) -> tuple[Any, str]:
    """The JSON at `path`, None where there is none, and the problem in that case."""
    url = url.rstrip("/")
    with http_client(url, _TIMEOUT_S) as http:
        try:
            return http.get(path).json(), f"{url} has no {path}"
        except httpx.ConnectError:
            return None, f"nothing listens at {url}"
        except httpx.HTTPError as error:
            return None, f"{url}{path}: {error or type(error).__name__}"
        except ValueError:
            return None, f"{url} has no {path}"


def _from_dashboard(url: str) -> list[ApplicationStatus]:
    """Empty where there is no dashboard, or it is the dashboard of other services."""
    address, parts = os.environ.get("RAY_DASHBOARD_ADDRESS"), urlsplit(url)
    if not address and parts.hostname not in LOOPBACK:
        return []
    path = f"{address or _DASHBOARD}/api/serve/applications/"
    try:
        # Without the API key, which is for the services alone.
        answer = httpx.get(path, timeout=_TIMEOUT_S, trust_env=False)
        details = answer.raise_for_status().json()
        if parts.port not in _ports(details):
            return []
        return [_reported(name, detail) for name, detail in details["applications"].items()]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []


def _ports(details: Mapping[str, Any]) -> set[int | None]:
    """Ports of these services: of Serve's proxy, and of the router's own listener."""
    router = details["applications"].get("router", {}).get("deployed_app_config") or {}
    listen = router.get("args", {}).get("listen") or {}
    return {details["http_options"]["port"], listen.get("port")}


def _answering(name: str, running: int, problem: str) -> ApplicationStatus:
    if running:
        return ApplicationStatus(name=name, status="RUNNING", running=running)
    return ApplicationStatus(name=name, status="NOT_READY", message=problem)


def _reported(name: str, detail: Mapping[str, Any]) -> ApplicationStatus:
    deployments = detail["deployments"].values()
    replicas = [replica for deployment in deployments for replica in deployment["replicas"]]
    messages = [detail["message"], *(deployment["message"] for deployment in deployments)]
    return ApplicationStatus(
        name=name,
        status=detail["status"],
        running=sum(replica["state"] == "RUNNING" for replica in replicas),
        message="\n".join(filter(None, messages)),
    )
