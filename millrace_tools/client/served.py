"""The status of the services, seen from outside their cluster.

The router and the orchestrator are asked at the address of clients. Ray's dashboard, where there
is one, knows the applications behind them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

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


class Served:
    """The services behind one URL; a context manager.

    Raises:
        InvalidInput: it is not a URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._http = http_client(url, _TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def leased(self) -> int:
        """Replicas that the router may use now; 0 where no router answers."""
        health, _ = self._ask("/health")
        return health.get("leased_replicas", 0) if isinstance(health, dict) else 0

    def states(self) -> list[ApplicationStatus]:
        """The status of each application; only the dashboard knows those without an address."""
        known = {state.name: state for state in self._from_dashboard()}
        for state in self._from_outside():
            if not (state.name in known and known[state.name].failed):
                known[state.name] = state
        return list(known.values())

    def _from_outside(self) -> list[ApplicationStatus]:
        health, no_health = self._ask("/health")
        runs, no_runs = self._ask(RUNS)
        leased = health.get("leased_replicas") if isinstance(health, dict) else None
        return [
            _answering("rollout_server", leased or 0, "no replica has weights and a lease"),
            _answering("router", int(leased is not None), no_health),
            _answering("orchestrator", int(isinstance(runs, list)), no_runs),
        ]

    def _ask(self, path: str) -> tuple[Any, str]:
        """The JSON at `path`, None where there is none, and the problem in that case."""
        try:
            return self._http.get(path).json(), f"{self.url} has no {path}"
        except httpx.ConnectError:
            return None, f"nothing listens at {self.url}"
        except httpx.HTTPError as error:
            return None, f"{self.url}{path}: {error or type(error).__name__}"
        except ValueError:
            return None, f"{self.url} has no {path}"

    def _from_dashboard(self) -> list[ApplicationStatus]:
        """Empty where there is no dashboard, or it is the dashboard of other services."""
        address, url = os.environ.get("RAY_DASHBOARD_ADDRESS"), self._http.base_url
        if not address and url.host not in LOOPBACK:
            return []
        try:
            # Without the API key, which is for the services alone.
            answer = httpx.get(
                f"{address or _DASHBOARD}/api/serve/applications/",
                timeout=_TIMEOUT_S,
                trust_env=False,
            )
            details = answer.raise_for_status().json()
            if url.port not in _ports(details):
                return []
            return [_reported(name, detail) for name, detail in details["applications"].items()]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            return []


def _ports(details: Mapping[str, Any]) -> set[int | None]:
    """Where these services answer: Serve's proxy, and the router's own listener."""
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
