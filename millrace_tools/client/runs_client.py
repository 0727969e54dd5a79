"""The orchestrator's HTTP API as the command line uses it."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from millrace_tools.client.absence import nobody, unknown_path
from millrace_tools.client.api_key import API_KEY, key_headers
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunConfig, RunRequest, RunState, RunStatus

URL = "http://127.0.0.1:8000"
RUNS = "/v1/runs"
ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_STOP_TIMEOUT = httpx.Timeout(120.0, connect=5.0)  # it waits for the train step in progress


class RunsClient:
    """Starts, watches and stops runs; every error is `InvalidInput` or `NotReady`.

    Attributes:
        url: where the services answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self.url, timeout=_TIMEOUT, trust_env=False, headers=key_headers()
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidInput("--url", url, f"It is not a URL: {error}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def start(self, config: RunConfig, *, resume: str | None = None) -> RunStatus:
        """Start a run, or go on with an earlier one.

        Raises:
            InvalidInput: the orchestrator refuses it, or is busy with another run.
            NotReady: it does not answer properly.
        """
        request = RunRequest(config=config, resume=resume)
        body = request.model_dump(mode="json")
        return RunStatus.model_validate(self._call("POST", RUNS, json=body))

    def status(self, run_id: str) -> RunStatus:
        """Where a run is; errors as in `start`."""
        return RunStatus.model_validate(self._call("GET", f"{RUNS}/{run_id}"))

    def runs(self) -> list[RunStatus]:
        """Every run of this orchestrator's life, oldest first; errors as in `start`."""
        return [RunStatus.model_validate(run) for run in self._call("GET", RUNS)]

    def active(self, action: str) -> RunStatus:
        """The run that is active, which `action` is for.

        Raises:
            InvalidInput: there is none, and as in `start`.
        """
        active = [run for run in self.runs() if run.state not in ENDED]
        if not active:
            fix = f"No run is active, so there is nothing to {action}."
            raise InvalidInput("run_id", "(none)", fix)
        return active[-1]

    def control(self, run_id: str, action: str) -> RunStatus:
        """`stop`, `pause`, `unpause` or `checkpoint` a run; returns when it is done; errors as in
        `start`."""
        path = f"{RUNS}/{run_id}/{action}"
        return RunStatus.model_validate(self._call("POST", path, timeout=_STOP_TIMEOUT))

    def trajectories(self, run_id: str, limit: int) -> list[dict[str, Any]]:
        """The newest answers kept for people, oldest first; errors as in `start`."""
        return self._call("GET", f"{RUNS}/{run_id}/trajectories", params={"limit": limit})

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise nobody(self.url) from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise InvalidInput("--url", self.url, f"It is not a URL: {error}.") from None
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
            raise NotReady(f"{self.url}{path} does not answer: {problem}") from None
        return self._content(answer)

    def _content(self, answer: httpx.Response) -> Any:
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.is_success and content is not None:
            return content
        error = content.get("error") if isinstance(content, Mapping) else None
        if isinstance(error, Mapping) and {"param", "value", "fix"} <= error.keys():
            raise InvalidInput(error["param"], error["value"], error["fix"])
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise unknown_path(self.url, RUNS, "orchestrator")
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise NotReady(f"{self.url} asks for an API key: set {API_KEY} to one that it knows")
        raise NotReady(f"{answer.url} answered {answer.status_code}: {answer.text[:200]}")
