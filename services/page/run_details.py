"""Questions about one run beside those of its curves and groups, and the notes of people."""

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from pydantic import Field, ValidationError
from starlette.responses import Response

from services.access.access_control import KEY_NAME
from services.http.error_answer import answer_refused_bodies, error_answer
from services.http.json_body import parsed_body, read_body
from services.http.openapi import component, describe_bodies, json_body
from services.page.notes import NewNote, RunNotes
from services.page.reading.details.heldout_answers import HeldOutQuery
from services.page.reading.details.log_lines import LogQuery
from services.page.reading.details.task_progress import TasksQuery
from services.page.run_store import RunStore
from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel

_BODY_BYTES, _BODY_S = 64 * 1024, 10.0


class UsageQuery(StrictModel, use_attribute_docstrings=True):
    """How busy engines and nodes were."""

    points: int = Field(default=300, ge=2, le=4000)
    """Most rows: where there are more looks, a row is the mean over several."""


def add_run_details(app: FastAPI, store: RunStore) -> None:
    """Add them to the page's application."""

    @app.get("/api/runs/{run_id}/tasks")
    def tasks(run_id: str, asked: Annotated[TasksQuery, Query()]) -> Any:
        """Rewards and pass rates by kind, difficulty or source of tasks, and tasks that were never
        solved, always solved, forgotten or learned."""
        return store.open(run_id).details.tasks(asked)

    @app.get("/api/runs/{run_id}/heldout")
    def heldout(run_id: str, asked: Annotated[HeldOutQuery, Query()]) -> Any:
        """Answers to held-out tasks at two evaluations, next to each other."""
        return store.open(run_id).details.heldout(asked)

    @app.get("/api/runs/{run_id}/log")
    def log(run_id: str, asked: Annotated[LogQuery, Query()]) -> Any:
        """Log lines of the run, newest first, and how many fit in all."""
        return store.open(run_id).details.log(asked)

    @app.get("/api/runs/{run_id}/alerts")
    def alerts(run_id: str) -> Any:
        """What of the run needs attention: findings, figures out of bounds, warnings of its log."""
        return {"alerts": store.open(run_id).alerts(store.status(run_id))}

    @app.get("/api/runs/{run_id}/usage")
    def usage(run_id: str, asked: Annotated[UsageQuery, Query()]) -> Any:
        """Load of the engines, and use of CPUs and GPUs by node, over the time of the run."""
        return {"columns": store.open(run_id).details.usage(asked.points)}

    @app.get("/api/runs/{run_id}/setup")
    def setup(run_id: str) -> Any:
        """The configuration of the run as it was resolved, beside the defaults."""
        run = store.open(run_id)
        return run.details.setup(run.overview()["config"])

    _add_notes(app, store)


def _add_notes(app: FastAPI, store: RunStore) -> None:
    describe_bodies(app, NewNote)
    answer_refused_bodies(app, fix="A note has 4000 characters at most.")

    @app.get("/api/runs/{run_id}/notes")
    def notes(run_id: str) -> Any:
        """Notes that people wrote about the run, newest first."""
        return {"notes": RunNotes(store.open(run_id).path).all()}

    @app.post(
        "/api/runs/{run_id}/notes",
        status_code=201,
        openapi_extra=json_body(component(NewNote), required=True),
    )
    async def write(run_id: str, request: Request) -> Any:
        """Write a note into the run's directory."""
        if refusal := _not_from_here(request):
            return refusal
        note = await _note(request)
        run = await asyncio.to_thread(store.open, run_id)
        author = request.scope.get(KEY_NAME) or note.author

        def add() -> dict[str, Any]:
            found = RunNotes(run.path)
            found.add(note, step=run.overview()["step"], author=author)
            return {"notes": found.all()}

        return await asyncio.to_thread(add)


def _not_from_here(request: Request) -> Response | None:
    """Refuse what a page of another origin can have a browser send without asking first."""
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return error_answer(415, "content-type", kind, "Send the note as application/json.")
    site = headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        return error_answer(403, "sec-fetch-site", site, "Notes are written on the page itself.")
    return None


async def _note(request: Request) -> NewNote:
    body = await read_body(request.receive, max_bytes=_BODY_BYTES, timeout_s=_BODY_S)
    try:
        return NewNote.model_validate(parsed_body(body))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"]) or "body"
        raise InvalidInput(field, problem["input"], f"{problem['msg']}.") from None
