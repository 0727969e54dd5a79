"""The page's HTTP application: static files, questions below `api/`, and a stream of changes."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response, StreamingResponse
from pydantic import Field
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.http.error_answer import answer_invalid_input, error_answer
from services.http.json_body import AsciiJson
from services.http.openapi import ERRORS
from services.ledger.sample_group import LARGEST, GroupQuery
from services.page.change_stream import ChangeStream
from services.page.reading.spans import LATEST
from services.page.reading.trajectory_index import TrajectoryQuery
from services.page.run_details import add_run_details
from services.page.run_store import NoSuchRun, RunGone, RunStore
from services.page.runs_http import add_runs
from services.protocol.run.figures import FIGURES
from services.protocol.strict import StrictModel
from services.side_by_side import running

STATIC = FilePath(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_Number = Annotated[int, Path(ge=0, le=LARGEST)]
_Time = Annotated[float, Field(ge=0, le=LATEST)]


class CurvesQuery(StrictModel, use_attribute_docstrings=True):
    """The numbers of train steps."""

    points: int = Field(default=800, ge=2, le=4000)
    """Most rows: where there are more steps, a row is the mean over several."""


class TimelineQuery(StrictModel, use_attribute_docstrings=True):
    """What every part of the system did."""

    since: _Time | None = None
    """Seconds since 1970; the beginning by default."""

    until: _Time | None = None
    """Seconds since 1970; the end by default."""

    bins: int = Field(default=120, ge=10, le=2000)
    """Equal parts of that time; where train steps are shorter, fewer."""


class MomentQuery(StrictModel, use_attribute_docstrings=True):
    """What one part of the system did at a time."""

    lane: str = Field(max_length=1000)
    """A lane of the timeline, such as `trainer 0`."""

    at: _Time
    """Seconds since 1970."""

    slack: _Time = 0.0
    """Seconds before and after it that count as well."""


class PushesQuery(StrictModel, use_attribute_docstrings=True):
    """Pushes of weights."""

    limit: int = Field(default=100, ge=1, le=500)
    """Most pushes."""


def page_app(
    store: RunStore, follow: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> FastAPI:
    """The application; errors are those of `services.http.error_answer`.

    Args:
        store: where runs are found.
        follow: what keeps the store fresh while the application lives.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running(follow(), name="cluster") if follow else nullcontext():
            yield

    app = FastAPI(
        title="Millrace page",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        responses=ERRORS,
    )
    app.add_exception_handler(RequestValidationError, _invalid_question)
    answer_invalid_input(app)
    app.add_exception_handler(NoSuchRun, _no_such_run)
    app.add_exception_handler(sqlite3.Error, _damaged_ledger)
    app.add_middleware(GZipMiddleware, minimum_size=2048)
    app.add_middleware(GuardedApp)
    add_runs(app, store)
    _add_questions(app, store)
    _add_trajectories(app, store)
    add_run_details(app, store)
    _add_timeline(app, store)

    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def open_paths(prefix: str = "") -> list[str]:
    """Paths that hold nothing of any run: what a browser needs before it can ask for a key."""
    return [prefix, f"{prefix}/", f"{prefix}/static/*"]


def _add_questions(app: FastAPI, store: RunStore) -> None:
    stream = ChangeStream()

    @app.get("/api/figures")
    def figures() -> Any:
        """What each figure of a run counts, by its name in `metrics.jsonl`."""
        return {"figures": FIGURES}

    @app.get("/api/live")
    def live() -> Any:
        """Replicas with version and lease, and the router's load; null without a cluster."""
        return {"live": store.live()}

    @app.get("/api/runs/{run_id}")
    def overview(run_id: str) -> Any:
        """What a run is, where it stands, and how its ledger balances."""
        known = {"status": store.status(run_id), "figures": store.figures(run_id).as_json()}
        return store.open(run_id).overview() | known

    @app.get("/api/runs/{run_id}/curves")
    def curves(run_id: str, asked: Annotated[CurvesQuery, Query()]) -> Any:
        """The numbers of train steps as columns, and the evaluations."""
        return store.open(run_id).curves(asked.points)

    @app.get("/api/runs/{run_id}/groups")
    def groups(run_id: str, asked: Annotated[GroupQuery, Query()]) -> Any:
        """Sample groups of the ledger with their rewards, and how many fit in all."""
        return store.open(run_id).groups(asked)

    @app.get("/api/runs/{run_id}/groups/{group_id}")
    def group(run_id: str, group_id: _Number) -> Any:
        """One sample group, and those of its trajectories that are kept, their texts cut short."""
        found = store.open(run_id).group(group_id)
        if found is None:
            return error_answer(404, "group_id", group_id, "The run has no such sample group.")
        return found

    @app.get("/api/runs/{run_id}/events", response_class=StreamingResponse)
    async def events(run_id: str) -> Response:
        """Server-sent events: `change` when a run's file has changed, `gone` when the run is."""
        return stream.response(await asyncio.to_thread(store.open, run_id))


def _add_trajectories(app: FastAPI, store: RunStore) -> None:
    @app.get("/api/runs/{run_id}/trajectories")
    def trajectories(run_id: str, asked: Annotated[TrajectoryQuery, Query()]) -> Any:
        """Trajectories that are kept, their texts cut short, and how many fit in all."""
        return store.open(run_id).trajectories(asked)

    @app.get("/api/runs/{run_id}/trajectories/{number}")
    def trajectory(run_id: str, number: _Number) -> Any:
        """One trajectory, whole: its token ids, their texts and logprobs, advantages, versions."""
        found = store.open(run_id).trajectory(number)
        if found is None:
            return error_answer(404, "number", number, "The run has no such trajectory.")
        return found


def _add_timeline(app: FastAPI, store: RunStore) -> None:
    @app.get("/api/runs/{run_id}/timeline")
    def timeline(run_id: str, asked: Annotated[TimelineQuery, Query()]) -> Any:
        """How busy each lane was in equal parts of a time, why it was idle, and, of a lane with
        few spans, these."""
        return store.open(run_id).timeline(asked.since, asked.until, asked.bins)

    @app.get("/api/runs/{run_id}/moment")
    def moment(run_id: str, asked: Annotated[MomentQuery, Query()]) -> Any:
        """What one lane did at a time, span by span."""
        return {"spans": store.open(run_id).moment(asked.lane, asked.at, asked.slack)}

    @app.get("/api/runs/{run_id}/pushes")
    def pushes(run_id: str, asked: Annotated[PushesQuery, Query()]) -> Any:
        """Pushes of weights with their phases, newest first."""
        return {"pushes": store.open(run_id).pushes(asked.limit)}


class GuardedApp:
    """Adds headers to every answer that keep a browser from running or sending text of a model.

    With `trusted-types 'none'` the browser refuses to make HTML or scripts from any text at all.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[Any] = list(message.get("headers", []))
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-cache"))
                message = {**message, "headers": headers + _HEADERS}
            await send(message)

        await self._app(scope, receive, guarded if scope["type"] == "http" else send)


def _invalid_question(_: Request, error: Exception) -> AsciiJson:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    is_unknown = problem["type"] == "extra_forbidden"
    fix = "There is no such parameter." if is_unknown else f"{problem['msg']}."
    return error_answer(400, str(problem["loc"][-1]), problem["input"], fix)


def _no_such_run(_: Request, error: Exception) -> AsciiJson:
    gone = isinstance(error, RunGone)
    fix = "Its directory is not there any more." if gone else "The page knows no such run."
    return error_answer(404, "run_id", error.args[0], fix)


def _damaged_ledger(_: Request, error: Exception) -> AsciiJson:
    return error_answer(500, "ledger.sqlite", str(error), "The ledger cannot be read.")
