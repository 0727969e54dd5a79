"""Spans as a collector gets them, and nothing where tracing is off."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from services.observability import tracing
from services.observability.tracing import TracingConfig
from services.orchestrator.core.events import (
    BatchTaken,
    BatchTrained,
    GroupClosed,
    GroupReady,
    GroupStarted,
    VersionLive,
)
from services.orchestrator.observers.group_telemetry import GroupTraces
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import PythonFunctionGrader
from services.protocol.reward.code_tests import FunctionTest, Limits
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring
from services.router.errors import UpstreamBroken
from services.router.request.trace_context import TRACE, Segment, request_span
from tests.observability.collector import Collector, receiving

SECRET = "the capital of France is"


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with receiving(tmp_path_factory.mktemp("collector")) as collector:
        yield collector


@pytest.fixture
def collector(receiver: Collector) -> Iterator[Collector]:
    """Empty, and this process exports to it."""
    receiver.file.unlink(missing_ok=True)
    tracing.start(TracingConfig(endpoint=receiver.endpoint), service="test")
    yield receiver
    tracing.stop()


def test_off_means_no_span_no_header_and_no_sdk() -> None:
    with tracing.span("something", replica="r1") as span:
        span.set(tokens=3)
        span.fail("broken")
    assert span is tracing.OFF
    assert tracing.begin("other", {}, links=("nonsense",)).headers == {}
    assert not tracing.is_on()
    code = "import sys, services.observability.tracing; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr


def test_spans_join_over_headers_and_errors_are_their_status(collector: Collector) -> None:
    group = tracing.begin("group", {}, run="tiny-1")
    with contextlib.suppress(ValueError), tracing.span("rollout", group.headers) as rollout:
        inner = tracing.begin("inner")
        inner.event("seen", tokens=1)
        inner.end()
        raise ValueError(SECRET)
    group.end()
    tracing.stop()
    root, child, grandchild = (collector.span(name=n) for n in ("group", "rollout", "inner"))
    assert (root["parent"], child["parent"]) == ("", root["span"])
    assert grandchild["parent"] == child["span"] == rollout.headers["traceparent"][36:52]
    assert {one["trace"] for one in (root, child, grandchild)} == {root["trace"]}
    assert root["service"] == "millrace.test"
    assert root["attributes"] == {"millrace.run": "tiny-1"}
    assert child["error"] == "ValueError"
    assert SECRET not in collector.file.read_text()


def test_a_trace_that_is_not_sampled_is_passed_on_as_such(receiver: Collector) -> None:
    receiver.file.unlink(missing_ok=True)
    tracing.start(TracingConfig(endpoint=receiver.endpoint, ratio=0.0), service="test")
    group = tracing.begin("group", {})
    child = tracing.begin("rollout", group.headers)
    flags = int(child.headers["traceparent"][-2:], 16)
    assert not flags & 1, "the lowest bit says that it is sampled"
    sampled = f"00-{'a' * 32}-{'b' * 16}-01"
    tracing.begin("request", tracing.of(sampled)).end()
    child.end()
    group.end()
    tracing.stop()
    assert receiver.span()["parent"] == "b" * 16, "who began a trace decides"


def test_a_collector_that_is_away_delays_nobody(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_STOP_S", 0.2)
    config = TracingConfig(endpoint=f"http://127.0.0.1:{closed_port}")
    tracing.start(config, service="test")
    for _ in range(10_000):  # more than may wait
        tracing.begin("group", {}).end()
    began = time.monotonic()
    tracing.stop()
    assert time.monotonic() - began < 20, "the provider's own deadline is 30 s"
    assert not tracing.is_on()


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_an_endpoint_is_a_url_and_unknown_keys_are_refused() -> None:
    for wrong in ({"endpoint": "collector:4318"}, {"endpoint": "http://c", "rate": 1}, {}):
        with pytest.raises(InvalidInput, match="tracing"):
            TracingConfig.from_data(wrong, source="tracing")
    assert TracingConfig(endpoint="http://c:4318/").traces_url == "http://c:4318/v1/traces"


def test_a_groups_trace_ends_when_its_weights_are_live(collector: Collector) -> None:
    traces = GroupTraces("tiny-1")
    for group_id in (1, 2, 3):
        traces.on(GroupStarted(group_id=group_id, task_id=f"t{group_id}", attempt=1))
    for group_id in (1, 2):
        traces.on(GroupReady(group_id=group_id))
    traces.on(GroupClosed(group_id=3, ending="failed", reason="deadline"))
    traces.on(BatchTaken(group_ids=(1, 2), at_bound=False, ready=0))
    train = traces.training((1, 2), step=4)
    train.end()
    traces.on(BatchTrained(group_ids=(1, 2), step=4, version=7))
    traces.on(VersionLive(version=6))
    traces.on(VersionLive(version=8))
    tracing.stop()
    first, second, failed = collector.spans(name="group")
    step, other = collector.spans(name="train")
    assert (step["trace"], step["parent"]) == (first["trace"], first["span"])
    assert step["links"] == [[second["trace"], second["span"]]]
    assert other["parent"] == second["span"]
    assert other["links"] == [[step["trace"], step["span"]]]
    assert step["attributes"] == {"millrace.step": "4"}
    assert failed["error"] == "deadline"
    for push, group in zip(collector.spans(name="push"), (first, second), strict=True):
        assert push["parent"] == group["span"]
        assert push["events"] == ["live"]
        assert group["attributes"]["millrace.ending"] == "trained"
    assert len(collector.spans(name="batch")) == 2


def test_the_router_sends_each_replica_a_span_of_its_own(collector: Collector) -> None:
    request = tracing.begin("request", {})
    TRACE.set(request.headers)
    with request_span("choose") as choice:
        choice.set(replica="r1", kind="free")
    with contextlib.suppress(UpstreamBroken), Segment("generate", "r1", renders=True) as segment:
        segment.rendered(12)
        to_first = TRACE.get()["traceparent"][36:52]
        raise UpstreamBroken("connection", SECRET)
    with Segment("failover", "r2"):
        to_second = TRACE.get()["traceparent"][36:52]
    assert TRACE.get() == request.headers
    request.end()
    tracing.stop()
    root, generate = collector.span(name="request"), collector.span(name="generate")
    failover, render = collector.span(name="failover"), collector.span(name="render")
    assert {one["parent"] for one in (generate, failover)} == {root["span"]}
    assert collector.span(name="choose")["parent"] == root["span"]
    assert (generate["span"], failover["span"]) == (to_first, to_second)
    assert (generate["error"], failover["error"]) == ("connection", None)
    assert render["parent"] == generate["span"]
    assert render["attributes"] == {"millrace.tokens": "12"}
    assert SECRET not in collector.file.read_text()


async def test_each_test_of_an_answer_is_a_span_below_its_grading(
    collector: Collector, scored: Callable[[ScoreJob], object]
) -> None:
    tests = [FunctionTest(args=[1], expected=2), FunctionTest(args=[2], expected=9)]
    grader = PythonFunctionGrader(
        kind="python_function", entry_point="f", tests=tests, limits=Limits()
    )
    asked = tracing.begin("score", {})
    answer = f"```python\ndef f(x):\n    # {SECRET}\n    return x + 1\n```"
    job = ScoreJob(job_id="a", completion=answer, grader=grader, trace=asked.traceparent)
    await scored(job)
    asked.end()
    tracing.stop()
    score, grade = collector.span(name="score"), collector.span(name="grade")
    assert grade["parent"] == score["span"]
    assert grade["attributes"]["millrace.verdict"] == Verdict.WRONG_ANSWER
    assert collector.span(name="queue")["parent"] == grade["span"]
    found = collector.spans(name="test")
    assert {one["parent"] for one in found} == {grade["span"]}
    shown = {one["attributes"]["millrace.test"]: one["error"] for one in found}
    assert shown == {"0": None, "1": "wrong_answer"}
    assert all(one["began"] <= one["ended"] for one in found)
    assert SECRET not in collector.file.read_text()


@pytest.fixture
def scored() -> Iterator[Callable[[ScoreJob], object]]:
    scoring = Scoring(RewardServiceConfig(slots=1))

    async def score(job: ScoreJob) -> None:
        await scoring.start()
        await scoring.score([job])

    yield score
    scoring.close()
