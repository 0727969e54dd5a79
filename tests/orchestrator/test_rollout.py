"""The rollout client against a real HTTP server that says exactly what each test wants."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout import rollout
from services.orchestrator.rollout.limits import RolloutLimits, limited
from services.orchestrator.rollout.rollout import (
    RolloutClient,
    RolloutFailed,
    RolloutRequest,
    sampling_seed,
)
from services.protocol.router import RETURN_TRAJECTORY, STREAM_BY

REQUEST = RolloutRequest(
    session="run-7-1",
    messages=[{"role": "user", "content": "hi"}],
    n=2,
    temperature=0.7,
    max_tokens=9,
    seed=5,
    limits=RolloutLimits(total_s=2.0, progress_s=600.0),
)


def event(index: int, tokens: int = 3, **changes) -> bytes:
    choice = {
        "index": index,
        "message": {"role": "assistant", "content": f"answer {index}"},
        "finish_reason": "length",
        "trajectory": {
            "prompt_token_ids": [4, 5],
            "token_ids": list(range(tokens)),
            "logprobs": [-0.5] * tokens,
            "spans": [[3, 0, 1, "a"], [4, 1, tokens, "b"]],
        },
    } | changes
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def answering(*pieces: bytes, status: int = 200, before=None, **settings: int):
    """A client of a server that sends these pieces one after the other."""
    got: list[tuple[dict, str]] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        got.append((await request.json(), request.headers["x-session-id"]))
        if before is not None:
            await before(len(got))
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    server = TestServer(app)
    await server.start_server()
    config = OrchestratorConfig(
        router_url=f"http://127.0.0.1:{server.port}",
        backoff_s=0.01,
        backoff_max_s=0.02,
        **settings,
    )
    try:
        async with RolloutClient(config, model="tiny") as client:
            yield client, got
    finally:
        await server.close()


async def sample(client: RolloutClient, request: RolloutRequest = REQUEST) -> list:
    arrived: list = []
    await client.sample(request, lambda index, trajectory: arrived.append((index, trajectory)))
    return arrived


async def test_the_request_is_plain_openai_with_two_open_extensions() -> None:
    async with answering(event(1), event(0), DONE) as (client, got):
        await sample(client)
    assert got == [
        (
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": "hi"}],
                "n": 2,
                "temperature": 0.7,
                "max_tokens": 9,
                "seed": 5,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stream": True,
                "stream_by": "choice",
                "return_trajectory": True,
            },
            "run-7-1",
        )
    ]


async def test_every_token_knows_its_policy_version() -> None:
    async with answering(event(1), event(0), DONE) as (client, _):
        arrived = await sample(client)
    assert [index for index, _ in arrived] == [1, 0]
    trajectory = arrived[0][1]
    assert trajectory.response_token_ids == (0, 1, 2)
    assert trajectory.behaviour_logprobs == (-0.5,) * 3
    assert trajectory.loss_mask == (1, 1, 1)
    assert [(s.version, s.start, s.end, s.replica_id) for s in trajectory.spans] == [
        (3, 0, 1, "a"),
        (4, 1, 3, "b"),
    ]
    assert trajectory.oldest_version == 3
    assert (trajectory.text, trajectory.finish_reason) == ("answer 1", "length")


async def test_events_may_be_cut_anywhere_and_be_larger_than_any_buffer() -> None:
    whole = b": a comment\n\n" + event(0, tokens=60_000) + event(1).replace(b"\n", b"\r\n") + DONE
    pieces = [whole[i : i + 7777] for i in range(0, len(whole), 7777)]
    async with answering(*pieces) as (client, _):
        arrived = await sample(client)
    assert [len(trajectory.response_token_ids) for _, trajectory in arrived] == [60_000, 3]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([event(0), DONE], "incomplete"),
        ([event(0), event(0), DONE], "bad_event"),
        ([event(0), event(2), DONE], "bad_event"),
        ([event(0), b"data: {nonsense\n\n"], "bad_event"),
        ([event(0), event(1, trajectory=None), DONE], "bad_event"),
        ([event(0), event(1, tokens=0), DONE], "bad_event"),
        ([event(0), b'data: {"error": {"message": "no lease"}}\n\n'], "error_event"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_answer_that_is_not_whole_has_a_name(pieces: list[bytes], reason: str) -> None:
    async with answering(*pieces) as (client, _):
        with pytest.raises(RolloutFailed) as failure:
            await sample(client)
    assert failure.value.reason == reason
    assert failure.value.retryable


async def test_a_trajectory_with_a_token_without_a_version_is_refused() -> None:
    fields = {"prompt_token_ids": [1], "token_ids": [1, 2], "logprobs": [-1.0, -1.0]}
    gap = fields | {"spans": [[3, 0, 1, "a"]]}
    async with answering(event(0), event(1, trajectory=gap), DONE) as (client, _):
        with pytest.raises(RolloutFailed, match="cover 1 of 2"):
            await sample(client)


async def test_a_refused_request_is_not_asked_again() -> None:
    async with answering(b"too long", status=400) as (client, got):
        with pytest.raises(RolloutFailed, match="too long") as failure:
            await sample(client)
    assert not failure.value.retryable
    assert len(got) == 1


OPENAI = {"error": {"message": "the prompt has\n9000 tokens", "type": "x", "param": None}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(OPENAI), "http_400: the prompt has 9000 tokens"),
        ('{"error": "too long"}', 'http_400: {"error": "too long"}'),
        ('{"detail": "too long"}', 'http_400: {"detail": "too long"}'),
        ("<html>\n too  long", "http_400: <html> too long"),
        ("[" * 500, f"http_400: {'[' * 296} ..."),
    ],
    ids=lambda text: text[:12],
)
async def test_a_refusal_is_told_in_its_own_words_on_one_line(text: str, said: str) -> None:
    async with answering(text.encode(), status=400) as (client, _):
        with pytest.raises(RolloutFailed) as failure:
            await sample(client)
    assert str(failure.value) == said


async def test_an_error_in_the_stream_is_told_in_its_own_words() -> None:
    event_of_error = b"data: " + json.dumps(OPENAI).encode() + b"\n\n"
    async with answering(event_of_error) as (client, _):
        with pytest.raises(RolloutFailed) as failure:
            await sample(client)
    assert str(failure.value) == "error_event: the prompt has 9000 tokens"


async def test_a_deadline_names_what_kept_the_router_away() -> None:
    request = replace(REQUEST, limits=RolloutLimits(total_s=0.3, progress_s=600.0))
    async with answering(b"no replica holds a lease", status=503) as (client, got):
        with pytest.raises(RolloutFailed) as failure:
            await sample(client, request)
    assert len(got) > 1
    assert str(failure.value) == (
        "deadline: not answered in 0.3 s, last: http_503: no replica holds a lease"
    )


@pytest.mark.parametrize(
    ("said", "reason", "timeout_s"),
    [
        (b"no HTTP at all\r\n\r\n", "deadline", 0.5),
        (b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n\xff\xfe", "http_400", 60.0),
    ],
)
async def test_what_a_broken_proxy_says_fails_a_rollout_and_not_the_run(
    said: bytes, reason: str, timeout_s: float
) -> None:
    async def proxy(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = OrchestratorConfig(router_url=f"http://127.0.0.1:{port}", backoff_s=0.01)
    async with server, RolloutClient(config, model="tiny") as client:
        limits = RolloutLimits(total_s=timeout_s, progress_s=600.0)
        with pytest.raises(RolloutFailed, match=reason):
            await sample(client, replace(REQUEST, limits=limits))


async def test_a_deadline_ends_the_wait() -> None:
    async def forever(_: int) -> None:
        await asyncio.sleep(60)

    request = replace(REQUEST, limits=RolloutLimits(total_s=0.1, progress_s=600.0))
    async with answering(before=forever) as (client, _):
        async with asyncio.timeout(300):
            with pytest.raises(RolloutFailed) as failure:
                await sample(client, request)
    assert failure.value.reason == "deadline"


async def test_an_answer_that_makes_no_progress_is_given_up() -> None:
    async def forever(_: int) -> None:
        await asyncio.sleep(600)

    request = replace(REQUEST, limits=RolloutLimits(total_s=None, progress_s=0.1))
    async with answering(before=forever) as (client, _):
        async with asyncio.timeout(300):
            with pytest.raises(RolloutFailed) as failure:
                await sample(client, request)
    assert str(failure.value) == "no_progress: no progress for 0.1 s"


async def test_no_limit_of_a_group_begins_before_it_has_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[RolloutLimits] = []
    first, over = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def noted(limits: RolloutLimits):
        begun.append(limits)
        async with limited(limits) as progressed:
            yield progressed

    async def hold(_: int) -> None:
        first.set()
        await over.wait()

    monkeypatch.setattr(rollout, "limited", noted)
    pieces = event(0), event(1), DONE
    async with answering(*pieces, before=hold, max_connections=1) as (client, _):
        groups = [asyncio.create_task(sample(client)) for _ in range(2)]
        async with asyncio.timeout(300):
            await first.wait()
            assert len(begun) == 1
            over.set()
            await asyncio.gather(*groups)
    assert len(begun) == 2


async def test_a_full_router_is_asked_again_for_as_long_as_it_takes_and_one_away_is_not() -> None:
    heard: dict[int, int] = {429: 0, 503: 0}
    for status in heard:

        def progressed(status: int = status) -> None:
            heard[status] += 1

        limits = RolloutLimits(total_s=0.3, progress_s=600.0)
        request = replace(REQUEST, limits=limits, progressed=progressed)
        async with answering(status=status) as (client, got):
            with pytest.raises(RolloutFailed, match="deadline"):
                await sample(client, request)
        assert len(got) > 1
    assert heard[429] > 1
    assert heard[503] == 0


async def test_a_comment_of_the_router_is_progress() -> None:
    heard: list[None] = []
    request = replace(REQUEST, progressed=lambda: heard.append(None))
    async with answering(b": 5 tokens\n\n") as (client, _):
        with pytest.raises(RolloutFailed, match="incomplete"):
            await sample(client, request)
    assert len(heard) == 1


async def test_a_refusal_inside_a_stream_that_had_begun_is_none_to_try_again() -> None:
    refused = {"error": OPENAI["error"] | {"code": 400}}
    busy = {"error": OPENAI["error"] | {"code": 429}}
    reasons = {}
    for said in (refused, busy):
        line = b": 0 tokens\n\ndata: " + json.dumps(said).encode() + b"\n\n"
        async with answering(line) as (client, _):
            with pytest.raises(RolloutFailed) as failure:
                await sample(client)
        reasons[failure.value.reason] = failure.value.retryable
    assert reasons == {"http_400": False, "error_event": True}


def test_seeds_differ_by_run_place_and_attempt_and_are_the_same_everywhere() -> None:
    seeds = {sampling_seed(r, p, a) for r in range(4) for p in range(50) for a in range(3)}
    assert len(seeds) == 600
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert sampling_seed(0, 1, 2) == 1127100872


async def test_the_model_s_own_sampling_defaults_never_reach_a_rollout() -> None:
    # vLLM takes seconds to import, and only this test needs its request type.
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    async with answering(event(1), event(0), DONE) as (client, got):
        await sample(client)
    body = {name: got[0][0][name] for name in got[0][0].keys() - {STREAM_BY, RETURN_TRAJECTORY}}
    own = {
        "temperature": 0.6,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    }
    own_stops = [151643, 151645]
    request = ChatCompletionRequest.model_validate(body)
    params = request.to_sampling_params(9, own | {"stop_token_ids": own_stops})
    assert {name: getattr(params, name) for name in own} == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert params.stop_token_ids == own_stops, "the model's own end tokens are needed"
