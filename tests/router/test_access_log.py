"""One line for each request, with what happened and nothing of what was said."""

import asyncio
import json
import logging

import pytest

from services.observability.log import JsonFormatter

ASK = [{"role": "user", "content": "secret words"}]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Lines(list):
    """Access lines, parsed; a client may have its answer before its line is written."""

    def __init__(self):
        self._more = asyncio.Event()

    def add(self, line):
        self.append(line)
        self._more.set()

    async def all(self, count):
        async with asyncio.timeout(300):
            while len(self) < count:
                self._more.clear()
                await self._more.wait()
        assert len(self) == count
        return self


@pytest.fixture
async def lines():
    written = Lines()

    class Keeping(logging.Handler):
        def emit(self, record):
            if record.getMessage() == "request":
                written.add(json.loads(JsonFormatter().format(record)))

    logger, keeping = logging.getLogger("millrace.router"), Keeping()
    logger.addHandler(keeping)
    yield written
    logger.removeHandler(keeping)


async def _chat(cluster, **more):
    return await cluster.client.chat.completions.create(model="test-model", messages=ASK, **more)


async def test_a_line_says_where_a_request_went_and_where_its_time_did(cluster, lines):
    await cluster.start(replicas=1, access_log=1.0)
    headers = {"x-session-id": "s1", "traceparent": PARENT}
    answer = await _chat(cluster, extra_headers=headers)
    (line,) = await lines.all(1)
    assert (line["endpoint"], line["status"]) == ("chat", "ok")
    assert (line["replica"], line["choice"], line["session"]) == ("replica-0", "new", "s1")
    assert line["tokens"] == answer.usage.completion_tokens
    assert line["prompt_tokens"] == answer.usage.prompt_tokens
    assert line["trace"] == PARENT[3:35]
    phases = line["ms"]
    assert phases.keys() == {"queue", "first_token", "stream", "total"}
    assert sum(phases.values()) <= 2 * phases["total"] + 0.3  # rounding
    text = json.dumps(line)
    assert "secret" not in text
    assert answer.choices[0].message.content not in text


async def test_a_line_says_how_often_an_answer_was_continued_elsewhere(cluster, lines, fault):
    await cluster.start(replicas=2, access_log=1.0)
    cluster.faults.append(fault("drop", after=2))
    await _chat(cluster)
    (line,) = await lines.all(1)
    assert line["continued"] == 1


async def test_a_share_is_logged_and_all_that_fails(cluster, lines):
    await cluster.start(replicas=1, access_log=0.25)
    for _ in range(8):
        await _chat(cluster)
    assert [line["status"] for line in await lines.all(2)] == ["ok", "ok"]
    answer = await cluster.http.post(f"{cluster.url}/v1/chat/completions", content=b"nonsense")
    assert answer.status_code == 400
    (*_, line) = await lines.all(3)
    assert line["status"] != "ok"
    assert "replica" not in line


async def test_what_is_no_answer_and_who_has_no_key_is_logged_too(cluster, lines, tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: alice, key: alice-has-a-long-key}")
    await cluster.start(replicas=1, access_log=1.0, access={"api_keys_file": str(keys)})
    known = {"authorization": "Bearer alice-has-a-long-key", "traceparent": PARENT}
    await cluster.http.get(f"{cluster.url}/health")
    await cluster.http.post(f"{cluster.url}/v1/sessions", headers=known)
    await cluster.http.get(f"{cluster.url}/v1/sessions/gone", headers=known)
    body = {"model": "test-model", "messages": ASK}
    url = f"{cluster.url}/v1/chat/completions"
    await cluster.http.post(url, json=body)
    await cluster.http.post(url, json=body, headers=known)
    written = await lines.all(4)
    assert [(line["endpoint"], line["status"], line.get("key")) for line in written] == [
        ("POST /v1/sessions", "ok", "alice"),
        ("GET /v1/sessions/gone", "http_404", "alice"),
        ("POST /v1/chat/completions", "http_401", None),
        ("chat", "ok", "alice"),
    ]
    assert written[0]["trace"] == PARENT[3:35]


async def test_nothing_is_logged_unless_it_is_asked_for(cluster, lines):
    await cluster.start(replicas=1)
    await _chat(cluster)
    await cluster.close()  # which waits for requests to end, their lines included
    assert lines == []


async def test_replicas_get_the_trace_and_begin_none(cluster):
    await cluster.start(replicas=1)
    await _chat(cluster, extra_headers={"traceparent": PARENT, "tracestate": "a=1"})
    await _chat(cluster)
    first, second = cluster.replicas[0].traces
    assert first == (PARENT, "a=1")
    assert second == (None, None)


async def test_a_trace_is_begun_where_tracing_is_on(cluster, lines):
    await cluster.start(replicas=1, access_log=1.0, begin_traces=True)
    await _chat(cluster)
    ((parent, _),) = cluster.replicas[0].traces
    (line,) = await lines.all(1)
    assert parent[3:35] == line["trace"]
