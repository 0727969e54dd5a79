"""The HTTP face of the reward service."""

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import Field

from services.access.access_control import KEY_NAME
from services.http.error_answer import answer_invalid_input, answer_refused_bodies, error_answer
from services.http.json_body import AsciiJson, parsed_body, read_body
from services.http.openapi import ERRORS, component, describe_bodies, json_body
from services.observability.metrics import RewardMetrics
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.grader import (
    AnyGrader,
    Grader,
    HttpGrader,
    JudgeGrader,
    PythonGrader,
    WeightedGrader,
)
from services.protocol.reward.reward_service import Score, ScoreJob
from services.protocol.strict import StrictModel
from services.reward_service.config import RewardServiceConfig
from services.reward_service.graders.user_graders import named_in
from services.reward_service.languages import languages
from services.reward_service.off_loop import off_loop
from services.reward_service.sandbox.core_queue import QueueFull, caller
from services.reward_service.scoring import Scoring


class GradeJob(StrictModel):
    """One answer. Without a `grader` of its own the request's grades it."""

    job_id: str = Field(min_length=1, max_length=256)
    completion: str
    grader: Grader | None = None


class GradeRequest(StrictModel):
    """Answers to grade."""

    jobs: list[GradeJob] = Field(min_length=1)
    grader: Grader | None = None


class _UnknownTestSet(InvalidInput):
    """This replica does not have the test set, or no longer."""


def http_api(scoring: Scoring) -> FastAPI:
    """The routes; errors are those of `services.http.error_answer`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await scoring.tools.aclose()

    app = FastAPI(
        title="Millrace reward service",
        lifespan=lifespan,
        default_response_class=AsciiJson,
        responses=ERRORS,
    )
    describe_bodies(app, GradeRequest)
    _answer_errors(app)

    @app.post("/v1/grade", openapi_extra=json_body(component(GradeRequest), required=True))
    async def grade(request: Request) -> StreamingResponse:
        """Grade answers: one line of JSON for each, as soon as it is graded."""
        body = await _body(request, scoring.config)
        jobs = _jobs(await off_loop(len(body), _asked, body), scoring)
        scoring.sandbox.cores.refuse_if_full()
        caller.set(request.scope.get(KEY_NAME, ""))
        return StreamingResponse(_lines(scoring, jobs), media_type="application/x-ndjson")

    @app.put("/v1/test-sets/{name}", status_code=201)
    async def put_test_set(name: str, request: Request) -> dict[str, Any]:
        """Hand tests over under the SHA-256 of the body, a JSON list of tests."""
        text = await _body(request, scoring.config)
        return {"test_set": name, "tests": scoring.tools.test_sets.put(name, text)}

    @app.get("/v1/graders")
    async def graders() -> dict[str, Any]:
        """What can be graded, in which languages, and what these lack here."""
        kinds = GradeRequest.model_json_schema()["$defs"]
        return {
            "kinds": {name: schema for name, schema in kinds.items() if name.endswith("Grader")},
            "languages": sorted(languages()),
            "missing": scoring.tools.languages.missing,
            "python": _python_names(scoring.config),
            "http": sorted(scoring.config.http_graders),
            "judge": sorted(scoring.config.judges),
        }

    @app.get("/health")
    async def health() -> AsciiJson:
        """Whether answers can be graded, and how well they are held."""
        sandbox = scoring.sandbox
        state = {
            "healthy": scoring.healthy,
            "tier": sandbox.tier,
            "landlock_abi": sandbox.landlock_abi,
            "queued_cpu_s": round(sandbox.queued_s, 3),
        }
        return AsciiJson(state, status_code=200 if scoring.healthy else 503)

    return app


def _answer_errors(app: FastAPI) -> None:
    answer_invalid_input(app)
    answer_refused_bodies(app, fix="Send fewer jobs at a time, or a test set.")
    app.add_exception_handler(_UnknownTestSet, _unknown_test_set)
    app.add_exception_handler(QueueFull, _queue_full)


def closed_api() -> FastAPI:
    """The API of a service without `access` in its args: it refuses every request."""
    app = FastAPI(openapi_url=None)

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
    async def refuse(path: str) -> AsciiJson:
        return error_answer(403, "access", None, "The service's args do not say who may use it.")

    return app


async def _lines(scoring: Scoring, jobs: list[ScoreJob]) -> AsyncIterator[bytes]:
    """Scores as they come; a client that leaves ends the work."""
    async with aclosing(scoring.stream(jobs)) as scores:
        async for score in scores:
            yield score_json(score).encode() + b"\n"


def score_json(score: Score) -> str:
    """A score as one line of JSON."""
    return json.dumps(dataclasses.asdict(score), allow_nan=False)


async def _body(request: Request, config: RewardServiceConfig) -> bytes:
    return await read_body(
        request.receive, max_bytes=config.max_request_mb << 20, timeout_s=config.request_body_s
    )


def _asked(body: bytes) -> GradeRequest:
    return GradeRequest.from_data(parsed_body(body), source="request")


def _jobs(request: GradeRequest, scoring: Scoring) -> list[ScoreJob]:
    seen: set[str] = set()
    jobs = []
    for number, job in enumerate(request.jobs):
        if job.job_id in seen:
            raise InvalidInput(f"jobs.{number}.job_id", job.job_id, "It is used twice.")
        seen.add(job.job_id)
        grader = job.grader or request.grader
        if grader is None:
            fix = "Give each job a grader, or the request one for all."
            raise InvalidInput(f"jobs.{number}.grader", None, fix)
        field = "grader" if job.grader is None else f"jobs.{number}.grader"
        _check(grader, field, scoring)
        jobs.append(ScoreJob(job_id=job.job_id, completion=job.completion, grader=grader))
    return jobs


def _check(grader: AnyGrader, field: str, scoring: Scoring) -> None:
    """Refuse what only this service knows that it does not have."""
    if isinstance(grader, WeightedGrader):
        for number, part in enumerate(grader.parts):
            _check(part.grader, f"{field}.parts.{number}.grader", scoring)
    elif isinstance(grader, PythonGrader):
        _known(grader.name, _python_names(scoring.config), f"{field}.name", "Registered")
    elif isinstance(grader, HttpGrader):
        _known(grader.name, sorted(scoring.config.http_graders), f"{field}.name", "Registered")
    elif isinstance(grader, JudgeGrader):
        _known(grader.name, sorted(scoring.config.judges), f"{field}.name", "Registered")
    elif isinstance(grader, CodeGrader):
        _known(grader.language, sorted(languages()), f"{field}.language", "Known")
        if missing := scoring.tools.languages.missing.get(grader.language):
            raise InvalidInput(f"{field}.language", grader.language, missing)
        try:
            tests = scoring.tools.test_sets.of_grader(grader)
        except ValueError as problem:
            entry_point = grader.entry_point
            raise InvalidInput(f"{field}.entry_point", entry_point, str(problem)) from None
        if tests is None:
            fix = f"PUT the tests to /v1/test-sets/{grader.test_set} first, or again."
            raise _UnknownTestSet(f"{field}.test_set", grader.test_set, fix)


def _known(name: str, names: list[str], field: str, word: str) -> None:
    if name not in names:
        raise InvalidInput(field, name, f"{word} are {names}.")


def _python_names(config: RewardServiceConfig) -> list[str]:
    return sorted({*config.graders, *named_in(config.grader_modules)})


def _unknown_test_set(_: Request, error: Exception) -> AsciiJson:
    assert isinstance(error, InvalidInput)
    return error_answer(404, error.field, error.value, error.fix)


def _queue_full(_: Request, error: Exception) -> AsciiJson:
    assert isinstance(error, QueueFull)
    RewardMetrics.refusals.inc()
    response = error_answer(429, "jobs", str(error), "Try again later.")
    response.headers["retry-after"] = str(round(error.retry_after_s))
    return response
