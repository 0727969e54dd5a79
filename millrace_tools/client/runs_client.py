"""The orchestrator's HTTP API as the command line uses it."""

from collections.abc import Mapping
from typing import Any, Self

import httpx

from millrace_tools.client.services_url import (
    asks_for_key,
    http_client,
    nothing_answers,
    unknown_path,
)
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState, RunStatus
from services.protocol.run.profile import Profile, ProfileOrder

URL = "http://127.0.0.1:8000"
RUNS = "/v1/runs"
ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_STOP_TIMEOUT = httpx.Timeout(120.0, connect=5.0)  # it waits for the train step in progress
_TRAJECTORIES = 1000


class RunsClient:
    """Starts, watches and stops runs; a context manager.

    Every method raises `InvalidInput` where nothing answers, or the orchestrator refuses the
    request, and `NotReady` where it does not answer properly.

    Attributes:
        url: where the services answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._http = http_client(url, _TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def start(
        self, config: RunConfig, *, resume: str | None = None, branch: str | None = None
    ) -> RunStatus:
        """Start a run, resume an earlier one, or branch off one; no other run may be active."""
        body = RunRequest(config=config, resume=resume, branch=branch).model_dump(mode="json")
        return RunStatus.model_validate(self._call("POST", RUNS, json=body))

    def status(self, run_id: str) -> RunStatus:
        """The status of a run."""
        return RunStatus.model_validate(self._call("GET", f"{RUNS}/{run_id}"))

    def runs(self) -> list[RunStatus]:
        """Every run since the orchestrator started, oldest first."""
        return [RunStatus.model_validate(run) for run in self._call("GET", RUNS)]

    def active(self, action: str) -> RunStatus:
        """The run that is active; `action` is what it is needed for.

        Raises:
            InvalidInput: there is none.
        """
        active = [run for run in self.runs() if run.state not in ENDED]
        if not active:
            fix = f"No run is active, so there is nothing to {action}."
            raise InvalidInput("run_id", "(none)", fix)
        return active[-1]

    def control(self, run_id: str, action: str) -> RunStatus:
        """`stop`, `pause`, `unpause` or `checkpoint` a run; returns when it is done."""
        path = f"{RUNS}/{run_id}/{action}"
        return RunStatus.model_validate(self._call("POST", path, timeout=_STOP_TIMEOUT))

    def profile(self, run_id: str, order: ProfileOrder) -> Profile:
        """Have the trainer profile its next steps; returns at once."""
        path, body = f"{RUNS}/{run_id}/profile", order.model_dump(mode="json")
        return Profile.model_validate(self._call("POST", path, json=body))

    def profiled(self, run_id: str, name: str) -> Profile:
        """A profile, with the ranks that are done."""
        return Profile.model_validate(self._call("GET", f"{RUNS}/{run_id}/profiles/{name}"))

    def trajectories(self, run_id: str) -> list[dict[str, Any]]:
        """The newest answers that the run keeps for people, oldest first."""
        return self._call("GET", f"{RUNS}/{run_id}/trajectories", params={"limit": _TRAJECTORIES})

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise nothing_answers(self.url) from None
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
            raise NotReady(f"{self.url}{path} does not answer: {problem}") from None
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.is_success and content is not None:
            return content
        refusal = content.get("error") if isinstance(content, Mapping) else None
        if isinstance(refusal, Mapping) and {"param", "value", "fix"} <= refusal.keys():
            raise InvalidInput(refusal["param"], refusal["value"], refusal["fix"])
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise unknown_path(self.url, RUNS, "orchestrator")
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise asks_for_key(self.url)
        raise NotReady(f"{answer.url} answered {answer.status_code}: {answer.text[:200]}")
