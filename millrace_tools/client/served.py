"""What can be seen of the services from outside, without joining their cluster.

The router and the orchestrator are asked at the address that clients use, and Ray's
dashboard, where there is one, says how far the applications behind them are.
"""

import os
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from millrace_tools.client.api_key import key_headers
from millrace_tools.client.app_state import AppState
from millrace_tools.client.runs_client import RUNS
from services.protocol.errors import InvalidInput

_TIMEOUT_S = 2.0  # Serve holds requests back for applications that are still starting
_DASHBOARD = "http://127.0.0.1:8265"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Served:
    """The services behind one URL; something to wait for. A context manager."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            split = urlsplit(self.url)
            self._host, self._port = split.hostname, split.port
        except ValueError as error:
            raise InvalidInput("--url", url, f"It is not a URL: {error}.") from None
        if split.scheme not in ("http", "https") or not self._host:
            raise InvalidInput("--url", url, "Write it like http://127.0.0.1:8000.")
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def leased(self) -> int:
        """Replicas that the router may use now; 0 where no router answers."""
        health, _ = self._ask("/health")
        return health.get("leased_replicas", 0) if isinstance(health, dict) else 0

    def states(self) -> list[AppState]:
        """How far each application is; the dashboard alone knows those without an address."""
        known = {state.name: state for state in self._from_dashboard()}
        for state in self._from_outside():
            if not (state.name in known and known[state.name].failed):
                known[state.name] = state
        return list(known.values())

    def _from_outside(self) -> list[AppState]:
        health, no_health = self._ask("/health")
        runs, no_runs = self._ask(RUNS)
        leased = health.get("leased_replicas") if isinstance(health, dict) else None
        return [
            _answering("rollout_server", leased or 0, "no replica has weights and a lease"),
            _answering("router", int(leased is not None), no_health),
            _answering("orchestrator", int(isinstance(runs, list)), no_runs),
        ]

    def _ask(self, path: str) -> tuple[Any, str]:
        """The JSON at `path`, None where there is none, and what then is the matter."""
        try:
            answer = self._http.get(self.url + path, headers=key_headers())
            return answer.json(), f"{self.url} has no {path}"
        except httpx.ConnectError:
            return None, f"nothing listens at {self.url}"
        except httpx.HTTPError as error:
            return None, f"{self.url}{path}: {error or type(error).__name__}"
        except ValueError:
            return None, f"{self.url} has no {path}"

    def _from_dashboard(self) -> list[AppState]:
        """Nothing where there is no dashboard, or it is that of other services."""
        told = os.environ.get("RAY_DASHBOARD_ADDRESS")
        if not told and self._host not in _LOOPBACK:
            return []
        try:
            answer = self._http.get(f"{told or _DASHBOARD}/api/serve/applications/")
            details = answer.raise_for_status().json()
            if self._port not in _ports(details):
                return []
            return [_reported(name, detail) for name, detail in details["applications"].items()]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            return []


def _ports(details: Mapping[str, Any]) -> set[int | None]:
    """Where these services answer: at Serve's proxy, and where the router listens itself."""
    router = details["applications"].get("router", {}).get("deployed_app_config") or {}
    listen = router.get("args", {}).get("listen") or {}
    return {details["http_options"]["port"], listen.get("port")}


def _answering(name: str, running: int, problem: str) -> AppState:
    if running:
        return AppState(name=name, status="RUNNING", running=running)
    return AppState(name=name, status="NOT_READY", message=problem)


def _reported(name: str, detail: Mapping[str, Any]) -> AppState:
    deployments = detail["deployments"].values()
    replicas = [replica for deployment in deployments for replica in deployment["replicas"]]
    messages = [detail["message"], *(deployment["message"] for deployment in deployments)]
    return AppState(
        name=name,
        status=detail["status"],
        running=sum(replica["state"] == "RUNNING" for replica in replicas),
        message="\n".join(filter(None, messages)),
    )
