"""One workspace over HTTP: opened, used, graded and closed."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, get_args
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import (
    CallResult,
    EndReason,
    ExecCall,
    FileEntry,
    OpenWorkspace,
    PythonCall,
    file_path,
)
from services.retry import doubling, retrying

PATH = "/v1/sandboxes"
"""Where the application answers, at the port of the router."""

_CONNECT_S, _ANSWER_S, _CLOSE_S = 10.0, 60.0, 4.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_SHOWN = 300  # characters of an error
_UNKNOWN, _GONE, _TOO_LARGE, _FULL = 404, 410, 413, 429
_FAULT = "workspace_fault"
_AWAY = (502, 503, 504)
_WRONG = (400, _UNKNOWN, 409, _TOO_LARGE, 422)
_OWN_DOING = ("memory", "disk")
_RESULT: TypeAdapter[CallResult] = TypeAdapter(CallResult)
_ENTRIES: TypeAdapter[list[FileEntry]] = TypeAdapter(list[FileEntry])


class WorkspaceFailed(RuntimeError):
    """A workspace cannot be had or used, through no mistake of the agent in it.

    Attributes:
        reason: short name for counting: `workspace_unavailable` (no answer, or the service has
            no jail to give), `workspace_full` (all of its places are taken), `workspace_lost`
            (it was closed, or its jail or replica died), `workspace_refused` (the service
            does not open such a workspace, or the key is wrong) or `workspace_ungraded`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class _NotBegun(WorkspaceFailed):
    """The call was not begun: it may be made again."""


class _Away(WorkspaceFailed):
    """The service, or one between it and here, is away; perhaps since the call began."""


class WorkspaceOverLimit(InvalidInput):
    """The agent's programs held more than the workspace may: it is gone.

    Attributes:
        reason: `memory` or `disk`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        fix = "It is gone, with all its files, because programs held too much."
        super().__init__("workspace", reason, fix)


@dataclass(frozen=True, kw_only=True)
class SandboxService:
    """The application that has workspaces.

    Attributes:
        http: connections; they ask no proxy of the environment.
        url: of the router, or of another port that has the application; without a path.
        headers: with the API key, where one is asked for.
        deadline: reading of `time.monotonic()` until which calls are made again that were not
            begun, because the service is away or full.
    """

    http: httpx.AsyncClient
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline: float = 0.0

    async def call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float = _ANSWER_S,
        runs_code: bool = False,
        **body: Any,
    ) -> httpx.Response:
        """Make one call, again while it is not begun.

        Args:
            method: of HTTP.
            path: below `PATH`.
            timeout_s: of each time, seconds.
            runs_code: made twice it would run twice: where nobody knows whether it was begun, it
                fails.
            body: what `httpx.AsyncClient.request` takes.

        Raises:
            InvalidInput: what was asked for is wrong.
            WorkspaceFailed: it cannot be done.
        """
        left = self.deadline - time.monotonic()
        return await retrying(
            lambda: self.once(method, path, timeout_s=timeout_s, body=body),
            on=_NotBegun if runs_code else (_NotBegun, _Away),
            pauses=doubling(_FIRST_PAUSE_S, _LONGEST_PAUSE_S),
            timeout_s=max(0.0, left),
        )

    async def once(
        self, method: str, path: str, *, timeout_s: float, body: Mapping[str, Any]
    ) -> httpx.Response:
        """Make one call, once; see `call`."""
        timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        url = f"{self.url}{PATH}{path}"
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.http.request(
                    method, url, headers=dict(self.headers), timeout=timeout, **body
                )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _NotBegun("workspace_unavailable", f"{self.url}: {error!r}") from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise WorkspaceFailed("workspace_unavailable", f"{self.url}: {error!r}") from None
        if answer.is_success:
            return answer
        raise _error(answer)


def _error(answer: httpx.Response) -> Exception:
    said = _said(answer)
    detail = str(said.get("message") or answer.text)[:_SHOWN]
    if answer.status_code == _GONE:
        return _gone(said, detail)
    if answer.status_code == _FULL:
        return _NotBegun("workspace_full", detail)
    if answer.status_code in _AWAY:
        known = said.get("type") == _FAULT  # no jail, or no process in one
        away = _NotBegun if known else _Away
        return away("workspace_unavailable", f"status {answer.status_code}: {detail}")
    if answer.status_code == _UNKNOWN and said.get("param") == "id":
        return WorkspaceFailed("workspace_lost", detail)
    if answer.status_code in _WRONG and "fix" in said:
        return InvalidInput(str(said.get("param")), said.get("value"), str(said["fix"]))
    kind = "workspace_unavailable" if answer.is_server_error else "workspace_refused"
    return WorkspaceFailed(kind, f"status {answer.status_code}: {detail}")


def _gone(said: Mapping[str, Any], detail: str) -> Exception:
    reason = str(said.get("reason", "lost"))
    if reason in _OWN_DOING:
        return WorkspaceOverLimit(reason)
    known = reason if reason in get_args(EndReason) else "lost"
    return WorkspaceFailed("workspace_lost", f"{known}: {detail}")


def _said(answer: httpx.Response) -> Mapping[str, Any]:
    """The error of a body in OpenAI's shape; nothing of another's, such as a proxy's page."""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return error if isinstance(error, dict) else {}


class RemoteWorkspace:
    """An open workspace. Calls are made one after the other; it must be closed."""

    def __init__(self, service: SandboxService, workspace_id: str) -> None:
        self.id, self._service = workspace_id, service

    @classmethod
    async def open(cls, service: SandboxService, spec: OpenWorkspace) -> Self:
        """Open one, when there is a place for it.

        Raises:
            WorkspaceFailed: none can be had until the service's deadline.
        """
        body = spec.model_dump(mode="json", exclude_unset=True)
        try:
            answer = await service.call("POST", "", json=body)
        except InvalidInput as error:
            raise WorkspaceFailed("workspace_refused", str(error)) from None
        try:
            return cls(service, str(answer.json()["id"]))
        except (ValueError, KeyError, TypeError):
            raise WorkspaceFailed("workspace_unavailable", "an answer without an id") from None

    async def close(self) -> None:
        """Close it; if that cannot be done now, its own limits close it."""
        try:
            await self._service.once("DELETE", f"/{self.id}", timeout_s=_CLOSE_S, body={})
        except (WorkspaceFailed, InvalidInput):
            return

    async def python(self, call: PythonCall) -> CallResult:
        """Run a cell."""
        return await self._run("python", call, call.wall_s)

    async def exec(self, call: ExecCall) -> CallResult:
        """Run a program."""
        return await self._run("exec", call, call.wall_s)

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """The bytes of a file.

        Raises:
            InvalidInput: there is no such file, or it is larger.
        """
        content = (await self._call("GET", _file(path))).content
        if len(content) > max_bytes:
            fix = f"It has {len(content)} bytes, and at most {max_bytes} are read."
            raise InvalidInput("path", path, fix)
        return content

    async def write(self, path: str, content: bytes) -> None:
        """Write a file.

        Raises:
            InvalidInput: no such file can be written.
        """
        await self._call("PUT", _file(path), content=content)

    async def list(self, path: str) -> list[FileEntry]:
        """The entries of a folder.

        Raises:
            InvalidInput: there is no such folder.
        """
        answer = await self._call("GET", "/list", params={"path": path})
        entries: list[FileEntry] = _parsed(_ENTRIES, answer)
        return entries

    async def grade(self, how: Mapping[str, Any]) -> Mapping[str, Any]:
        """Grade it.

        Args:
            how: the fields of `GradeWorkspace`.

        Returns:
            The score's fields.

        Raises:
            InvalidInput: it cannot be graded so.
        """
        answer = await self._call("POST", "/grade", json=dict(how), timeout_s=self._left)
        score: Mapping[str, Any] = answer.json()
        return score

    @property
    def _left(self) -> float:
        """Seconds until the service's deadline, for a call whose length nobody knows."""
        return max(_ANSWER_S, self._service.deadline - time.monotonic())

    async def _run(self, kind: str, call: PythonCall | ExecCall, wall_s: float) -> CallResult:
        body = call.model_dump(mode="json", exclude_unset=True)
        # It may wait for a place first, and the service says itself when it took too long.
        timeout_s = wall_s + self._left
        answer = await self._call(
            "POST", f"/{kind}", json=body, timeout_s=timeout_s, runs_code=True
        )
        result: CallResult = _parsed(_RESULT, answer)
        return result

    async def _call(self, method: str, path: str, **how: Any) -> httpx.Response:
        return await self._service.call(method, f"/{self.id}{path}", **how)


def _file(path: str) -> str:
    try:
        return f"/files/{quote(file_path(path))}"
    except ValueError as error:
        raise InvalidInput("path", path, f"{error}.") from None


def _parsed(kind: TypeAdapter[Any], answer: httpx.Response) -> Any:
    try:
        return kind.validate_json(answer.content)
    except ValidationError as error:
        raise WorkspaceFailed("workspace_unavailable", str(error)[:_SHOWN]) from None
