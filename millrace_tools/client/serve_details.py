"""Serve's own account of a deployment, which only Ray's dashboard gives: the status of each
application, and what was asked for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from millrace_tools.client.services_url import split_url
from services.http.api_key import key_header

_TIMEOUT_S = 10.0  # it shares the cores with services that are starting
_DASHBOARD = "http://127.0.0.1:8265"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_ENTRY = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


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
        return self.status == "DEPLOY_FAILED"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What was deployed last; None and 1 where Serve does not say.

    Attributes:
        served_model: name under which the rollout servers serve the policy.
        model: what the trainer begins with, as its arguments name it.
        replicas: rollout servers.
    """

    served_model: str | None = None
    model: str | None = None
    replicas: int = 1


@dataclass(frozen=True, kw_only=True)
class ServeDetails:
    """The dashboard's answer; no application where it asks for a token that is not here."""

    applications: tuple[ApplicationStatus, ...] = ()
    target: Target = Target()


def serve_details(url: str) -> ServeDetails | None:
    """What Serve says of the services at `url`; None where there is no dashboard, or it is the
    dashboard of other services. One that does not answer now is an application that is late.

    Raises:
        InvalidInput: `url` is not a URL.
    """
    address, parts = os.environ.get("RAY_DASHBOARD_ADDRESS"), split_url(url)
    if not address and parts.hostname not in LOOPBACK:
        return None
    path = f"{address or _DASHBOARD}/api/serve/applications/"
    try:
        answer = _get(path)
        if answer.status_code in _NO_ENTRY and (token := _ray_token()):
            answer = _get(path, headers=key_header(token))
    except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL):
        return None
    except httpx.HTTPError as error:
        return _silent(f"{path}: {error or type(error).__name__}")
    if answer.status_code in _NO_ENTRY:
        return ServeDetails()
    if answer.is_server_error:
        return _silent(f"{path} answered {answer.status_code}")
    try:
        return _details(answer.json(), parts.port)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # it is no dashboard


def _get(path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """Without the API key, which is for the services alone."""
    return httpx.get(path, timeout=_TIMEOUT_S, trust_env=False, headers=headers)


def _ray_token() -> str | None:
    """The token that Ray asks for, from where Ray's own commands take it."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _silent(problem: str) -> ServeDetails:
    late = ApplicationStatus(name="dashboard", status="NOT_READY", message=problem)
    return ServeDetails(applications=(late,))


def _details(details: Mapping[str, Any], port: int | None) -> ServeDetails | None:
    found = details["applications"]
    if port not in _ports(details):
        return None
    return ServeDetails(
        applications=tuple(_reported(name, detail) for name, detail in found.items()),
        target=_target(found),
    )


def _ports(details: Mapping[str, Any]) -> set[int | None]:
    """Ports of these services: of Serve's proxy, and of the router's own listener."""
    listen = _arguments(details["applications"], "router").get("listen") or {}
    return {details["http_options"]["port"], listen.get("port")}


def _target(applications: Mapping[str, Any]) -> Target:
    rollout = applications.get("rollout_server", {}).get("deployments", {}).values()
    return Target(
        served_model=_arguments(applications, "rollout_server").get("served_model_name"),
        model=_arguments(applications, "trainer").get("model"),
        replicas=max([1, *(one.get("target_num_replicas", 1) for one in rollout)]),
    )


def _arguments(applications: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments with which an application is deployed, or is about to be."""
    config = applications.get(name, {}).get("deployed_app_config") or {}
    return config.get("args") or {}


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
