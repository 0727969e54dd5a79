"""The page's HTTP application: static files, questions below `api/`, and a stream of changes."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from services.page.change_stream import ChangeStream
from services.page.guarded_app import GuardedApp
from services.page.query import a_time, group_query, trajectory_query, whole_number
from services.page.run_shelf import NoSuchRun, RunShelf
from services.protocol.errors import InvalidInput

STATIC = Path(__file__).parent / "static"
_MOST_POINTS = 4000
_MOST_BINS = 2000
_MOST_PUSHES = 500


def page_app(
    shelf: RunShelf, follow: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> FastAPI:
    """The application; every error has the body `{"error": {field, value, fix, message}}`.

    Args:
        shelf: where runs are found.
        follow: what keeps the shelf fresh while the application lives.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(follow(), name="cluster")] if follow is not None else []
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="Millrace page",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.add_exception_handler(InvalidInput, _invalid_input)
    app.add_exception_handler(NoSuchRun, _no_such_run)
    app.add_exception_handler(sqlite3.Error, _damaged_ledger)
    app.add_middleware(GZipMiddleware, minimum_size=2048)
    app.add_middleware(GuardedApp)
    _add_questions(app, shelf)
    _add_trajectories(app, shelf)
    _add_timeline(app, shelf)

    @app.get("/")
    def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def open_paths(prefix: str = "") -> list[str]:
    """Paths that hold nothing of any run: what a browser needs before it can ask for a key."""
    files = (path for path in STATIC.rglob("*") if path.is_file())
    static = [f"{prefix}/static/{path.relative_to(STATIC).as_posix()}" for path in files]
    return [prefix, f"{prefix}/", *static]


def _add_questions(app: FastAPI, shelf: RunShelf) -> None:
    stream = ChangeStream()

    @app.get("/api/runs")
    def runs() -> Any:
        return {"runs": shelf.runs()}

    @app.get("/api/live")
    def live() -> Any:
        return {"live": shelf.live()}

    @app.get("/api/runs/{run_id}")
    def overview(run_id: str) -> Any:
        return shelf.open(run_id).overview() | {"status": shelf.status(run_id)}

    @app.get("/api/runs/{run_id}/curves")
    def curves(run_id: str, request: Request) -> Any:
        points = whole_number(request.query_params, "points", 800, least=2, most=_MOST_POINTS)
        return shelf.open(run_id).curves(points)

    @app.get("/api/runs/{run_id}/groups")
    def groups(run_id: str, request: Request) -> Any:
        return shelf.open(run_id).groups(group_query(request.query_params))

    @app.get("/api/runs/{run_id}/groups/{group_id}")
    def group(run_id: str, group_id: str) -> Any:
        wanted = whole_number({"group_id": group_id}, "group_id", 0)
        found = shelf.open(run_id).group(wanted)
        if found is None:
            return _answer(404, "group_id", group_id, "The run has no such sample group.")
        return found

    @app.get("/api/runs/{run_id}/events")
    async def events(run_id: str) -> Response:
        return stream.response(shelf.open(run_id))


def _add_trajectories(app: FastAPI, shelf: RunShelf) -> None:
    @app.get("/api/runs/{run_id}/trajectories")
    def trajectories(run_id: str, request: Request) -> Any:
        return shelf.open(run_id).trajectories(trajectory_query(request.query_params))

    @app.get("/api/runs/{run_id}/trajectories/{number}")
    def trajectory(run_id: str, number: str) -> Any:
        wanted = whole_number({"number": number}, "number", 0)
        found = shelf.open(run_id).trajectory(wanted)
        if found is None:
            return _answer(404, "number", number, "The run has no such trajectory.")
        return found


def _add_timeline(app: FastAPI, shelf: RunShelf) -> None:
    @app.get("/api/runs/{run_id}/timeline")
    def timeline(run_id: str, request: Request) -> Any:
        params = request.query_params
        since, until = a_time(params, "since"), a_time(params, "until")
        bins = whole_number(params, "bins", 400, least=10, most=_MOST_BINS)
        return shelf.open(run_id).timeline(since, until, bins)

    @app.get("/api/runs/{run_id}/moment")
    def moment(run_id: str, request: Request) -> Any:
        params = request.query_params
        at, slack = a_time(params, "at"), a_time(params, "slack")
        found = shelf.open(run_id).moment(params.get("lane", ""), at or 0.0, slack or 0.0)
        return {"spans": found}

    @app.get("/api/runs/{run_id}/pushes")
    def pushes(run_id: str, request: Request) -> Any:
        limit = whole_number(request.query_params, "limit", 100, least=1, most=_MOST_PUSHES)
        return {"pushes": shelf.open(run_id).pushes(limit)}


def _invalid_input(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidInput)
    return _answer(400, error.field, error.value, error.fix)


def _no_such_run(_: Request, error: Exception) -> JSONResponse:
    return _answer(404, "run_id", error.args[0], "The page knows no such run.")


def _damaged_ledger(_: Request, error: Exception) -> JSONResponse:
    return _answer(500, "ledger.sqlite", str(error), "The ledger cannot be read.")


def _answer(code: int, field: str, value: object, fix: str) -> JSONResponse:
    shown = value if isinstance(value, str | int | float | bool | None) else repr(value)
    error = {"field": field, "value": shown, "fix": fix, "message": f"{field}: {shown!r}. {fix}"}
    return JSONResponse({"error": error}, status_code=code)
