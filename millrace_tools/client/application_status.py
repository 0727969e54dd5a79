"""The status of the services, seen from outside their cluster.

The router and the orchestrator are asked at the address of clients. Ray's dashboard, where there
is one, knows the applications behind them, and what they are to become.
"""

from dataclasses import dataclass
from typing import Any

import httpx

from millrace_tools.client.runs_client import RUNS
from millrace_tools.client.serve_details import ApplicationStatus, Target, serve_details
from millrace_tools.client.services_url import asks_for_key, http_client, nothing_answers

_TIMEOUT_S = 2.0  # Serve holds requests back for applications that are still starting


def leased_replicas(url: str) -> int:
    """Replicas that the router may use now; 0 where no router answers."""
    return _leased(_ask(url, "/health")) or 0


def application_states(url: str) -> list[ApplicationStatus]:
    """The status of each application; only the dashboard knows those without an address.

    While Serve replaces an application, the one before still answers. So an answer counts only
    where Serve has nothing left to do, and only if it is of the model that was deployed last.

    Raises:
        InvalidInput: nothing listens at `url`, and no dashboard knows of its services.
        NotReady: a service asks for an API key.
    """
    details, health = serve_details(url), _ask(url, "/health")
    if details is None and not health.listening:
        raise nothing_answers(url)
    known = {} if details is None else {state.name: state for state in details.applications}
    target = Target() if details is None else details.target
    for state in _from_outside(url, health, target):
        if state.name not in known or known[state.name].status == "RUNNING":
            known[state.name] = state
    return list(known.values())


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The JSON at a path, None where there is none, and the problem in that case."""

    content: Any = None
    problem: str = ""
    listening: bool = True


def _from_outside(url: str, health: _Answer, target: Target) -> list[ApplicationStatus]:
    """What the services say themselves."""
    runs, leased = _ask(url, RUNS), _leased(health)
    problem = _rollout_problem(url, leased or 0, target)
    return [
        _answering("rollout_server", leased or 0, problem),
        _answering("router", int(leased is not None), "" if leased is not None else health.problem),
        _answering("orchestrator", 1, "" if isinstance(runs.content, list) else runs.problem),
    ]


def _rollout_problem(url: str, leased: int, target: Target) -> str:
    """Why the rollout servers are not what was deployed last; empty where they are."""
    if not leased:
        return "no replica has weights and a lease"
    if leased < target.replicas:
        return f"{leased} of {target.replicas} replicas have weights and a lease"
    if target == Target():
        return ""
    models = _served(url)
    # A model is listed under each of its names; its root is the one that is not an alias.
    names = sorted({model["root"] for model in models})
    if target.served_model is not None and names != [target.served_model]:
        return f"they serve {', '.join(names) or 'no model'}, not {target.served_model} yet"
    # A bus that was restarted does not know where its weights are from.
    held = {one for model in models for one in model.get("trained_from", [])}
    if target.model is not None and (others := held - {target.model}):
        return f"they hold weights of {', '.join(sorted(others))}, not of {target.model} yet"
    return ""


def _served(url: str) -> list[dict[str, Any]]:
    """The models of the cluster's own replicas."""
    content = _ask(url, "/v1/models").content
    models = content.get("data", []) if isinstance(content, dict) else []
    return [model for model in models if model.get("journal", True)]


def _leased(health: _Answer) -> int | None:
    found = health.content
    return found.get("leased_replicas") if isinstance(found, dict) else None


def _ask(url: str, path: str) -> _Answer:
    url = url.rstrip("/")
    with http_client(url, _TIMEOUT_S) as http:
        try:
            answer = http.get(path)
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                raise asks_for_key(url)
            return _Answer(content=answer.json(), problem=f"{url} has no {path}")
        except httpx.ConnectError:
            return _Answer(problem=f"nothing listens at {url}", listening=False)
        except httpx.HTTPError as error:
            return _Answer(problem=f"{url}{path}: {error or type(error).__name__}")
        except ValueError:
            return _Answer(problem=f"{url} has no {path}")


def _answering(name: str, running: int, problem: str) -> ApplicationStatus:
    if not problem:
        return ApplicationStatus(name=name, status="RUNNING", running=running)
    return ApplicationStatus(name=name, status="NOT_READY", message=problem)
