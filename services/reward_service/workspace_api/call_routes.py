"""Routes that run programs and cells, with their output as it comes where that is asked for."""

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from services.http.json_body import AsciiJson, BodyRefused, disconnected, parsed_body
from services.http.openapi import component, json_body
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.reward.workspaces import CallResult, ExecCall, PythonCall
from services.reward_service.workspace_api.error_answers import answer_to
from services.reward_service.workspace_api.service import WorkspaceService
from services.reward_service.workspaces.errors import JailLost, QuotaFull, WorkspaceFault
from services.reward_service.workspaces.errors import WorkspaceGone as Gone
from services.reward_service.workspaces.running.output import OnOutput
from services.side_by_side import cancel

_T = TypeVar("_T")
_Run = Callable[[OnOutput | None], Coroutine[Any, Any, CallResult]]
_FIRST_S = 1.0
"""For which an answer waits for its first event: errors that come by then have their own status."""
_ERRORS = (InvalidInput, NotReady, JailLost, QuotaFull, WorkspaceFault, Gone)


def add_calls(app: FastAPI, service: WorkspaceService) -> None:
    """Add `exec` and `python`."""
    executed = json_body(component(ExecCall), required=True)
    python = json_body(component(PythonCall), required=True)

    @app.post("/{workspace_id}/exec", response_model=CallResult, openapi_extra=executed)
    async def run_program(request: Request, workspace_id: str) -> Response:
        """Run a program to its end. With `stream` its output comes as server-sent events."""
        call = ExecCall.from_data(parsed_body(await service.body(request)), source="exec")
        workspace = service.find(request)
        return await _answered(request, lambda on: workspace.exec(call, on), stream=call.stream)

    @app.post("/{workspace_id}/python", response_model=CallResult, openapi_extra=python)
    async def run_cell(request: Request, workspace_id: str) -> Response:
        """Run a cell in the kept interpreter. With `stream` its output comes as server-sent
        events."""
        call = PythonCall.from_data(parsed_body(await service.body(request)), source="python")
        workspace = service.find(request)
        return await _answered(request, lambda on: workspace.python(call, on), stream=call.stream)


async def unless_left(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of work, which is cancelled when the client leaves; the body has been read.

    Raises:
        BodyRefused: it left.
    """
    task = asyncio.create_task(work, name="call")
    leaving = asyncio.create_task(disconnected(request.receive), name="disconnected")
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise BodyRefused(499, "disconnected", "the client left before its answer came")
    finally:
        await cancel(task, leaving)


async def _answered(request: Request, run: _Run, *, stream: bool) -> Response:
    if not stream:
        return AsciiJson((await unless_left(request, _result(run))).model_dump())
    events = _Events(run)
    await events.begin()
    return StreamingResponse(events.lines(), media_type="text/event-stream")


async def _result(run: _Run) -> CallResult:
    return await run(None)


class _Events:
    """The output of a call and its result, as they come. What a call writes is bounded by it."""

    def __init__(self, run: _Run) -> None:
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in ("stdout", "stderr")}
        self._task = asyncio.create_task(run(self._came), name="call")
        self._task.add_done_callback(lambda _: self._queue.put_nowait(None))
        self._first: list[dict[str, Any] | None] = []

    async def begin(self) -> None:
        """Wait a moment for the first event.

        Raises:
            The errors of `Workspace.exec`: nothing has been written yet.
        """
        try:
            async with asyncio.timeout(_FIRST_S):
                self._first = [await self._queue.get()]
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await cancel(self._task)
            raise
        if self._first == [None] and not self._task.cancelled():
            self._task.result()

    async def lines(self) -> AsyncIterator[bytes]:
        """Server-sent events: `stdout` and `stderr` as they come, last `result` or `error`."""
        try:
            while (event := await self._next()) is not None:
                yield _line(event)
            for name, decoder in self._decoders.items():
                if rest := decoder.decode(b"", final=True):
                    yield _line({name: rest})
            yield _line(self._last())
        finally:
            await cancel(self._task)

    async def _next(self) -> dict[str, Any] | None:
        return self._first.pop() if self._first else await self._queue.get()

    def _last(self) -> dict[str, Any]:
        try:
            return {"result": self._task.result().model_dump()}
        except _ERRORS as error:
            return json.loads(bytes(answer_to(error).body))  # type: ignore[no-any-return]

    def _came(self, stream: str, content: bytes) -> None:
        if text := self._decoders[stream].decode(content):
            self._queue.put_nowait({stream: text})


def _line(event: dict[str, Any]) -> bytes:
    return b"data: " + bytes(AsciiJson(event).body) + b"\n\n"
