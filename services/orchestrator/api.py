"""The HTTP face of the orchestrator, below `/v1/runs`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from services.orchestrator.runs import NoSuchRun, RunActive, Runs
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.orchestrator import RunRequest, RunStatus

_MOST_TRAJECTORIES = 1000


def http_api(runs: Runs) -> FastAPI:
    """The routes; every error has the body `{"error": {field, value, fix, message}}`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await runs.close()

    app = FastAPI(title="Millrace runs", lifespan=lifespan)
    app.add_exception_handler(InvalidInput, _invalid_input)
    app.add_exception_handler(RunActive, _run_active)
    app.add_exception_handler(NoSuchRun, _no_such_run)
    app.add_exception_handler(NotReady, _not_ready)

    @app.post("", status_code=201)
    async def start(request: Request) -> RunStatus:
        return await runs.start(await _run_request(request))

    @app.get("")
    async def listing() -> list[RunStatus]:
        return runs.list()

    @app.get("/{run_id}")
    async def status(run_id: str) -> RunStatus:
        return runs.get(run_id).status()

    @app.post("/{run_id}/stop")
    async def stop(run_id: str) -> RunStatus:
        return await runs.stop(run_id)

    @app.get("/{run_id}/trajectories")
    async def trajectories(run_id: str, limit: str = "10") -> list[dict[str, Any]]:
        return runs.get(run_id).trajectories(_limit(limit))

    _add_controls(app, runs)
    return app


def _add_controls(app: FastAPI, runs: Runs) -> None:
    """The routes that hold a run and let it go on."""

    @app.post("/{run_id}/pause")
    async def pause(run_id: str) -> RunStatus:
        run = runs.active(run_id)
        run.pause()
        return run.status()

    @app.post("/{run_id}/resume")
    async def resume(run_id: str) -> RunStatus:
        run = runs.active(run_id)
        run.go_on()
        return run.status()

    @app.post("/{run_id}/checkpoint")
    async def checkpoint(run_id: str) -> RunStatus:
        run = runs.active(run_id)
        await run.checkpoint()
        return run.status()


async def _run_request(request: Request) -> RunRequest:
    """Read the body ourselves: FastAPI would answer with a list of its own shape."""
    try:
        data = json.loads(await request.body())
    except ValueError as error:
        raise InvalidInput("request body", "(not JSON)", f"Send JSON: {error}.") from None
    return RunRequest.from_data(data, source="run")


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _MOST_TRAJECTORIES:
        raise InvalidInput("limit", text, f"Give a number from 0 to {_MOST_TRAJECTORIES}.")
    return int(text)


def _invalid_input(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidInput)
    return _answer(400, error.field, error.value, error.fix, str(error))


def _run_active(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RunActive)
    return _answer(409, "run", error.run_id, str(error), str(error))


def _no_such_run(_: Request, error: Exception) -> JSONResponse:
    run_id = error.args[0]
    fix = "No such run. `millrace status` lists the runs since the orchestrator started."
    return _answer(404, "run_id", run_id, fix, f"{run_id!r}: {fix}")


def _not_ready(_: Request, error: Exception) -> JSONResponse:
    return _answer(503, "run", "(not ready)", f"Try again: {error}.", str(error))


def _answer(code: int, field: str, value: object, fix: str, message: str) -> JSONResponse:
    shown = value if isinstance(value, str | int | float | bool | None) else repr(value)
    error = {"field": field, "value": shown, "fix": fix, "message": message}
    return JSONResponse({"error": error}, status_code=code)
