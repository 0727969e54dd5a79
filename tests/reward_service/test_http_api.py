"""The HTTP API in one process: what it streams, and what it refuses and how."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.reward_service.http_api import http_api
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXACT = {"kind": "exact", "expected": "42"}
CODE = {"kind": "code", "tests": [{"stdin": "1 2", "expected": "3"}]}
JOB = {"job_id": "a", "completion": "42", "grader": EXACT}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scoring(new_scoring: Any) -> AsyncIterator[Scoring]:
    scoring = await new_scoring("B", slots=1, max_request_mb=1)
    yield scoring
    await scoring.tools.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(scoring: Scoring) -> AsyncIterator[httpx.AsyncClient]:
    app = http_api(scoring)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://reward") as client:
        yield client


async def test_answers_are_graded_and_streamed_as_lines(client: httpx.AsyncClient) -> None:
    tests = json.dumps(CODE["tests"]).encode()
    name = hashlib.sha256(tests).hexdigest()
    put = await client.put(f"/v1/test-sets/{name}", content=tests)
    assert (put.status_code, put.json()) == (201, {"test_set": name, "tests": 1})
    by_name = {"kind": "code", "test_set": name}
    sums = "print(sum(map(int, input().split())))"
    jobs = [JOB, {"job_id": "b", "completion": sums}, {**JOB, "job_id": "c", "completion": "41"}]
    answer = await client.post("/v1/grade", json={"jobs": jobs, "grader": by_name})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    scores = {score["job_id"]: score for score in map(json.loads, answer.text.splitlines())}
    assert {name: score["reward"] for name, score in scores.items()} == {"a": 1, "b": 1, "c": 0}
    assert scores["b"]["tests"][0]["verdict"] == "accepted"
    assert (scores["b"]["tier"], scores["b"]["total"]) == ("B", 1)


async def test_health_and_graders_say_what_is_there(client: httpx.AsyncClient) -> None:
    health = (await client.get("/health")).json()
    assert (health["healthy"], health["tier"]) == (True, "B")
    graders = (await client.get("/v1/graders")).json()
    assert {"python", "cpp17", "cpp20"} <= set(graders["languages"])
    assert "MathsGrader" in graders["kinds"]
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert {"/v1/grade", "/v1/test-sets/{name}", "/v1/graders", "/health"} <= set(paths)


async def test_a_language_without_its_tool_is_refused_with_what_to_install(
    client: httpx.AsyncClient, scoring: Scoring
) -> None:
    missing = "cpp17 needs g++, which is not here: `apt-get install g++`."
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoring.tools.languages, "missing", {"cpp17": missing})
        graders = (await client.get("/v1/graders")).json()
        grader = {**CODE, "language": "cpp17"}
        answer = await client.post("/v1/grade", json={"jobs": [{**JOB, "grader": grader}]})
    assert graders["missing"] == {"cpp17": missing}
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "jobs.0.grader.language")
    assert missing in error["message"]


REFUSED = [
    (b"{", 400, "body"),
    (b'{"jobs": "\xff"}', 400, "body"),
    (b'{"jobs": NaN}', 400, "body"),
    (b"[" * 100_000, 400, "body"),
    ({"jobs": []}, 400, "request: jobs"),
    ({}, 400, "request: jobs"),
    ({"jobs": [JOB], "extra": 1}, 400, "request: extra"),
    ({"jobs": [JOB, JOB]}, 400, "jobs.1.job_id"),
    ({"jobs": [{"job_id": "a", "completion": ""}]}, 400, "jobs.0.grader"),
    ({"jobs": [JOB], "grader": {"kind": "x"}}, 400, "request: grader"),
    ({"jobs": [{**JOB, "grader": {**CODE, "language": "cobol"}}]}, 400, "jobs.0.grader.language"),
    (
        {"jobs": [{**JOB, "grader": {**CODE, "tests": []}}]},
        400,
        "request: jobs.0.grader.code.tests",
    ),
    (
        {"jobs": [{**JOB, "grader": {"kind": "code", "test_set": "0" * 64}}]},
        404,
        "jobs.0.grader.test_set",
    ),
    ({"jobs": [{**JOB, "grader": {"kind": "python", "name": "os"}}]}, 400, "jobs.0.grader.name"),
    ({"jobs": [{**JOB, "grader": {"kind": "http", "name": "x"}}]}, 400, "jobs.0.grader.name"),
    ({"jobs": [{**JOB, "completion": "x" * (1 << 21)}]}, 413, "body"),
]


@pytest.mark.parametrize(("body", "status", "field"), REFUSED)
async def test_bad_input_is_refused_with_the_fields_name(
    client: httpx.AsyncClient, body: Any, status: int, field: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.post("/v1/grade", content=content)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == field
    assert len(answer.text) < 2000


async def test_a_test_set_has_the_name_of_its_content(client: httpx.AsyncClient) -> None:
    wrong = await client.put("/v1/test-sets/" + "0" * 64, content=b"[]")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "hash")
    name = hashlib.sha256(b"[]").hexdigest()
    empty = await client.put(f"/v1/test-sets/{name}", content=b"[]")
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "tests")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'[{"stdin": "", "expected": "", "weight": NaN}]', "body"),
        (b'[{"args": [1], "expected": Infinity}]', "body"),
        (b'[{"stdin": "\xff", "expected": ""}]', "body"),
        (b'{"stdin": "", "expected": ""}', "tests"),
        (b'[{"stdin": ""}]', "tests.0.expected"),
        (b'[{"stdin": "", "args": [], "expected": ""}]', "tests.0"),
    ],
)
async def test_bad_tests_are_refused_with_the_fields_name(
    client: httpx.AsyncClient, body: bytes, field: str
) -> None:
    name = hashlib.sha256(body).hexdigest()
    answer = await client.put(f"/v1/test-sets/{name}", content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_a_reward_that_is_no_number_is_an_infrastructure_failure(
    client: httpx.AsyncClient,
) -> None:
    part = {"grader": EXACT, "weight": 1e308}
    endless = {"kind": "weighted", "parts": [part, part]}
    answer = await client.post("/v1/grade", json={"jobs": [{**JOB, "grader": endless}]})
    score = answer.json()
    assert (score["verdict"], score["reward"]) == ("infra_error", None)


async def _asked(scoring: Scoring, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client gets whose request arrives as these events and then no further."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not events:
            await asyncio.Event().wait()
        return events.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    config = scoring.config.model_copy(update={"request_body_s": 0.05})
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/grade",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "raw_path": b"/v1/grade",
        "server": ("reward", 80),
        "client": ("here", 1),
        "root_path": "",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoring, "config", config)
        await asyncio.wait_for(http_api(scoring)(scope, receive, send), 300)
    return sent


async def test_a_client_that_sends_too_slowly_is_told_so(scoring: Scoring) -> None:
    part = {"type": "http.request", "body": b'{"jobs": [', "more_body": True}
    start, body = await _asked(scoring, [part])
    assert start["status"] == 408
    assert json.loads(body["body"])["error"]["param"] == "body"


async def test_a_client_that_vanishes_while_it_sends_is_no_error_of_ours(scoring: Scoring) -> None:
    part = {"type": "http.request", "body": b'{"jobs": [', "more_body": True}
    start, _ = await _asked(scoring, [part, {"type": "http.disconnect"}])
    assert start["status"] == 499


async def test_a_full_queue_says_when_to_come_back(
    client: httpx.AsyncClient, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring.sandbox.cores, "queued_s", 1e6)
    answer = await client.post("/v1/grade", json={"jobs": [JOB]})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_client_that_leaves_stops_the_work(scoring: Scoring, function_job: Any) -> None:
    busy = function_job("def f(a, b):\n    while True: pass", cpu_s=30)
    quick = function_job("def f(a, b):\n    return 21  # quick")
    scores = scoring.stream([quick, busy])
    assert (await anext(scores)).reward == 1.0
    await scores.aclose()
    cores = scoring.sandbox.cores
    assert (cores.queued_s, cores._free) == (0, 1)
