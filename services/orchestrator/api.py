"""The HTTP face of the orchestrator, below `/v1/runs`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from services.http.error_answer import answer_invalid_input, answer_refused_bodies, error_answer
from services.http.json_body import AsciiJson, parsed_body, read_body
from services.http.openapi import ERRORS, component, describe_bodies, json_body
from services.ledger.ledger_file import LedgerTaken
from services.orchestrator.lifecycle.runs import NoSuchRun, RunActive, Runs
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunRequest, RunStatus
from services.protocol.run.profile import Profile, ProfileOrder

_MOST_TRAJECTORIES, _MOST_DIGITS = 1000, 9
_BODY_BYTES, _BODY_S = 1 << 20, 30.0  # a run file is a few kilobytes


def http_api(runs: Runs) -> FastAPI:
    """The routes; errors are those of `services.http.error_answer`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await runs.close()

    app = FastAPI(
        title="Millrace runs",
        lifespan=lifespan,
        default_response_class=AsciiJson,
        responses=ERRORS,
    )
    describe_bodies(app, RunRequest, ProfileOrder)
    answer_invalid_input(app)
    answer_refused_bodies(app, fix="A run file is a few kilobytes.")
    _answer_errors(app)

    @app.post("", status_code=201, openapi_extra=json_body(component(RunRequest), required=True))
    async def start(request: Request) -> RunStatus:
        """Start a run, or resume an earlier one; 409 while another is active."""
        return await runs.start(await _run_request(request))

    @app.get("")
    async def listing() -> list[RunStatus]:
        """The runs since the orchestrator started."""
        return runs.list()

    @app.get("/{run_id}")
    async def status(run_id: str) -> RunStatus:
        """The status of a run."""
        return runs.get(run_id).status()

    @app.post("/{run_id}/stop")
    async def stop(run_id: str) -> RunStatus:
        """End a run and wait until it has ended; a checkpoint keeps its progress."""
        return await runs.stop(run_id)

    @app.get("/{run_id}/trajectories")
    async def trajectories(run_id: str, limit: str = "10") -> list[dict[str, Any]]:
        """The newest trajectories that are kept, at most `limit`, which is 1000 or less."""
        # A long run has kept many, and the run shares this event loop.
        directory = RunDirectory(runs.get(run_id).status().run_dir)
        return await asyncio.to_thread(directory.trajectories.lines, _limit(limit))

    _add_controls(app, runs)
    _add_profiles(app, runs)
    return app


def _add_controls(app: FastAPI, runs: Runs) -> None:
    """The routes that pause, unpause and save a run."""

    @app.post("/{run_id}/pause")
    async def pause(run_id: str) -> RunStatus:
        """Admit no sample group and begin no train step; rollouts end as usual."""
        run = runs.active(run_id)
        run.pause()
        return run.status()

    @app.post("/{run_id}/unpause")
    async def unpause(run_id: str) -> RunStatus:
        """End a pause."""
        run = runs.active(run_id)
        run.unpause()
        return run.status()

    @app.post("/{run_id}/checkpoint")
    async def checkpoint(run_id: str) -> RunStatus:
        """Write a checkpoint after the train step in progress, unless the newest one is of it."""
        run = runs.active(run_id)
        await run.checkpoint()
        return run.status()


def _add_profiles(app: FastAPI, runs: Runs) -> None:
    @app.post(
        "/{run_id}/profile", status_code=202, openapi_extra=json_body(component(ProfileOrder))
    )
    async def profile(run_id: str, request: Request) -> Profile:
        """Profile the next train steps on some ranks of the trainer; returns at once."""
        body = await read_body(request.receive, max_bytes=_BODY_BYTES, timeout_s=_BODY_S)
        order = ProfileOrder.from_data(parsed_body(body) if body else {}, source="profile")
        return await runs.active(run_id).profile(order)

    @app.get("/{run_id}/profiles/{name}")
    async def profiled(run_id: str, name: str) -> Profile:
        """Where the time of the profiled train steps went, by the ranks that are done."""
        directory = RunDirectory(runs.get(run_id).status().run_dir)
        found = await asyncio.to_thread(directory.profile, name)
        return found or Profile(name=name, folder="")


async def _run_request(request: Request) -> RunRequest:
    """Read the body ourselves: FastAPI would answer with a list of its own shape."""
    body = await read_body(request.receive, max_bytes=_BODY_BYTES, timeout_s=_BODY_S)
    return RunRequest.from_data(parsed_body(body), source="run")


def _limit(text: str) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not digits or int(text) > _MOST_TRAJECTORIES:
        raise InvalidInput("limit", text, f"Give a number from 0 to {_MOST_TRAJECTORIES}.")
    return int(text)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(RunActive)
    def run_active(_: Request, error: RunActive) -> AsciiJson:
        return error_answer(409, "run", error.run_id, str(error), message=str(error))

    @app.exception_handler(LedgerTaken)
    def ledger_taken(_: Request, error: LedgerTaken) -> AsciiJson:
        fix = "Ask the orchestrator that has taken the run over; this one has ended its part."
        return error_answer(409, "run", "(taken over)", fix, message=f"{error} {fix}")

    @app.exception_handler(NoSuchRun)
    def no_such_run(_: Request, error: NoSuchRun) -> AsciiJson:
        run_id = error.args[0]
        fix = "No such run. `millrace status` lists those of this orchestrator and those on disk."
        return error_answer(404, "run_id", run_id, fix, message=f"{run_id!r}: {fix}")

    @app.exception_handler(NotReady)
    def not_ready(_: Request, error: NotReady) -> AsciiJson:
        return error_answer(503, "run", "(not ready)", f"Try again: {error}.", message=str(error))
