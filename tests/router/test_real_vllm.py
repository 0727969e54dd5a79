"""The router in front of a real vLLM server: schemas as assumed, answers as vLLM's own."""

import asyncio
import contextlib
import dataclasses
import json

import aiohttp
import httpx
import openai
import pytest
from aiohttp import web

from services.protocol.weights.weight_bus import Member, ReplicaState
from tests.router.request_table import TOOLS, cases, forced
from tests.router.sameness import comparable
from tests.router.vllm_process import MODEL

DEADLINE_S = 300.0
"""That only a hang reaches."""
_JSON = {"content-type": "application/json"}
ASK = [{"role": "user", "content": "larger of a and 7, dann grüßen"}]


@pytest.fixture
def vllm_url(vllm):
    return vllm.plain


def _member(replica_id, url):
    return Member(
        replica_id=replica_id,
        address=url,
        state=ReplicaState.LIVE,
        committed_version=3,
        leased=True,
        model=MODEL,
        max_model_len=512,
        pid=1,
    )


@pytest.fixture
async def router(cluster, vllm_url):
    await cluster.start(replicas=0)
    await cluster.bus.put(_member("whole", vllm_url))
    return cluster


@pytest.fixture
async def plain(vllm_url):
    async with openai.AsyncOpenAI(base_url=f"{vllm_url}/v1", api_key="none") as client:
        yield client


CHATS = [
    {"temperature": 0, "max_tokens": 40},
    {"temperature": 0, "max_tokens": 40, "logprobs": True},
    {"temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 3},
    {"temperature": 1, "max_tokens": 16, "n": 2, "seed": 5},
    {"temperature": 0, "max_completion_tokens": 20, "presence_penalty": 0.3},
]


@pytest.mark.parametrize("extra", CHATS)
async def test_a_chat_answer_equals_vllms_own(router, plain, extra):
    ours = await router.client.chat.completions.create(model=MODEL, messages=ASK, **extra)
    theirs = await plain.chat.completions.create(model=MODEL, messages=ASK, **extra)
    assert [_seen(choice) for choice in ours.choices] == [_seen(c) for c in theirs.choices]
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert ours.usage.completion_tokens == theirs.usage.completion_tokens


def _seen(choice):
    content = choice.logprobs.content if choice.logprobs else []
    return (
        choice.index,
        choice.message.content,
        choice.finish_reason,
        choice.model_extra.get("stop_reason"),
        [
            (
                e.token,
                e.bytes,
                pytest.approx(e.logprob, abs=1e-5),
                [t.token for t in e.top_logprobs],
            )
            for e in content
        ],
    )


async def _stream_text(client, **extra):
    events = await client.chat.completions.create(model=MODEL, messages=ASK, stream=True, **extra)
    choices = [event.choices[0] async for event in events if event.choices]
    return "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason


async def test_streams_and_stop_strings_equal_vllms_own(router, plain):
    extra = {"temperature": 0, "max_tokens": 60}
    text, _ = await _stream_text(plain, **extra)
    assert await _stream_text(router.client, **extra) == (text, "length")
    stop = text[10:13]
    whole = await plain.chat.completions.create(model=MODEL, messages=ASK, stop=[stop], **extra)
    assert whole.choices[0].finish_reason == "stop"
    expected = (whole.choices[0].message.content, "stop")
    assert await _stream_text(router.client, stop=[stop], **extra) == expected
    ours = await router.client.chat.completions.create(
        model=MODEL, messages=ASK, stop=[stop], **extra
    )
    assert _seen(ours.choices[0]) == _seen(whole.choices[0])


async def test_completions_equal_vllms_own_also_with_default_length(router, plain):
    for extra in ({}, {"logprobs": 2, "max_tokens": 5}, {"prompt": [10, 11, 12]}):
        body = {"model": MODEL, "prompt": "return max(a", "temperature": 0, **extra}
        ours = (await router.client.completions.create(**body)).choices[0]
        theirs = (await plain.completions.create(**body)).choices[0]
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        if "logprobs" in extra:
            assert ours.logprobs.tokens == theirs.logprobs.tokens
            assert ours.logprobs.text_offset == theirs.logprobs.text_offset
            assert [list(top) for top in ours.logprobs.top_logprobs] == [
                list(top) for top in theirs.logprobs.top_logprobs
            ]


@pytest.mark.parametrize("stream", [False, True])
async def test_cached_prompt_tokens_are_told_as_by_vllm(router, vllm_url, stream):
    body = {"model": MODEL, "prompt": "grüße " * 60, "max_tokens": 1, "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    told = []
    for url in (vllm_url, vllm_url, router.url):
        answer = await router.http.post(f"{url}/v1/completions", json=body)
        parts = answer.text.split("data: ")[-2] if stream else answer.text
        told.append(json.loads(parts)["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert told[1] == told[2] > 0


async def test_errors_are_vllms_own(router, plain):
    bad = {"model": MODEL, "messages": ASK, "temperature": -1}
    with pytest.raises(openai.BadRequestError) as theirs:
        await plain.chat.completions.create(**bad)
    with pytest.raises(openai.BadRequestError) as ours:
        await router.client.chat.completions.create(**bad)
    assert ours.value.body == theirs.value.body


async def test_good_and_bad_requests_are_answered_as_by_vllm_itself(cluster, vllm):
    """Good and bad, plain and streamed; `sameness` says what is not compared, and why."""
    await cluster.start(replicas=0)
    limit = asyncio.Semaphore(16)

    async def answer(url, case):
        async with limit:
            raw = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
            return comparable(await http.post(url + case.path, content=raw, headers=_JSON))

    different = []
    # vLLM closes connections that nobody uses for five seconds.
    limits = httpx.Limits(keepalive_expiry=2)
    async with httpx.AsyncClient(timeout=300, verify=False, limits=limits) as http:
        for parsing, url in enumerate((vllm.plain, vllm.parsing)):
            chosen = [case for case in cases() if case.parsing == bool(parsing)]
            await cluster.bus.put(_member("whole", url))
            theirs = asyncio.gather(*(answer(url, case) for case in chosen))
            ours = asyncio.gather(*(answer(cluster.url, case) for case in chosen))
            different += [
                (case, one, other)
                for case, one, other in zip(chosen, await theirs, await ours, strict=True)
                if one != other
            ]
    assert not different, "\n\n".join("\n".join(map(repr, entry)) for entry in different)


async def test_every_chunk_of_the_patched_server_carries_its_policy_version(router):
    answer = await router.client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=12,
        extra_body={"return_trajectory": True, "ignore_eos": True},
    )
    assert answer.choices[0].model_extra["trajectory"]["spans"] == [[3, 0, 12, "whole"]]


async def test_a_session_is_token_exact_also_where_a_text_has_other_tokens_than_were_sampled(
    router,
):
    """Bytes of an untrained model rarely survive as text; what does not is never joined."""
    http, url = router.http, f"{router.url}/v1/sessions"
    session = (await http.post(url)).json()["id"]
    messages, sampled, known = list(ASK), 0, []
    only_a = {"logit_bias": {"68": 100}}  # one letter, which is one token in any text
    for extra in (only_a, only_a, {"seed": 1}, {"seed": 2}, only_a):
        answer = await router.client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=8,
            extra_headers={"x-session-id": session},
            extra_body={"return_trajectory": True},
            **extra,
        )
        part = answer.choices[0].model_extra["trajectory"]
        known.append(part["prompt_token_ids"] + part["token_ids"])
        sampled += len(part["token_ids"])
        said = answer.choices[0].message.content
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "7?"}]
    finish = {"return_trajectories": True}
    done = (await http.post(f"{url}/{session}/finish", json=finish)).json()
    assert sum(done["calls"].values()) == 5
    assert done["calls"]["first"] == 1
    assert done["calls"]["extended"] >= 2
    assert done["calls"].keys() <= {"first", "extended", "retokenized"}
    assert done["calls"]["retokenized"] >= 1
    seen = [t["prompt_token_ids"] + t["response_token_ids"] for t in done["trajectories"]]
    assert all(any(ids[: len(one)] == one for ids in seen) for one in known)
    assert all(ids in known for ids in seen)
    assert sum(sum(t["loss_mask"]) for t in done["trajectories"]) == sampled


@pytest.mark.parametrize(
    ("prompts", "later"), [("template", "retokenized"), ("recorded", "extended")]
)
async def test_prompts_of_recorded_tokens_make_one_trajectory_of_texts_with_other_tokens(
    cluster, vllm_url, prompts, later
):
    """An untrained model is made to spell "re", for which its tokenizer has a token of its own."""
    await cluster.start(replicas=0, session_prompts=prompts)
    await cluster.bus.put(_member("whole", vllm_url))
    http, url = cluster.http, f"{cluster.url}/v1/sessions"
    session = (await http.post(url)).json()["id"]
    r, e, end = 84, 71, 2
    messages, known = list(ASK), []
    for seed in (1, 2, 3):
        answer = await cluster.client.chat.completions.create(
            model=MODEL,
            messages=messages,
            seed=seed,
            max_tokens=80,
            logit_bias={str(r): 100, str(e): 100, str(end): 100},
            extra_headers={"x-session-id": session},
            extra_body={"return_trajectory": True, "min_tokens": 16},
        )
        (choice,) = answer.choices
        assert (choice.finish_reason, set(choice.message.content)) == ("stop", {"r", "e"})
        part = choice.model_extra["trajectory"]
        known.append(part["prompt_token_ids"] + part["token_ids"])
        messages += [choice.message.model_dump(), {"role": "user", "content": "7?"}]
    done = (await http.get(f"{url}/{session}")).json()
    assert done["calls"] == {"first": 1, later: 2}
    assert done["cuts"] == ({"template": 2} if prompts == "template" else {})
    last = done["trajectories"][-1]
    assert last["prompt_token_ids"] + last["response_token_ids"] == known[-1]
    if prompts == "recorded":
        assert known[0] == known[2][: len(known[0])]
        assert known[1] == known[2][: len(known[1])]


@contextlib.asynccontextmanager
async def _breaking(url):
    """An address in front of vLLM; it drops the next stream after `state["limit"]` chunks, or
    says nothing more after `state["pause"]` of them."""
    state = {"limit": None, "cuts": 0, "pause": None, "paused": asyncio.Event()}

    async def forward(request):
        body = await request.read()
        limit = None
        if "generate" in request.path:
            limit, state["limit"] = state["limit"], None
        async with aiohttp.ClientSession() as session:
            async with session.post(url + request.path, data=body, headers=_JSON) as got:
                kind = {"content-type": got.headers["content-type"]}
                response = web.StreamResponse(status=got.status, headers=kind)
                await response.prepare(request)
                chunks = 0
                async for line in got.content:
                    chunks += line.startswith(b"data")
                    if state["pause"] is not None and chunks > state["pause"]:
                        state["pause"] = None
                        state["paused"].set()
                        await asyncio.Event().wait()
                    if limit is not None and chunks > limit:
                        state["cuts"] += 1
                        request.transport.abort()
                        return response
                    await response.write(line)
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", forward)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield state, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("stop", [False, True], ids=["to the end", "to a stop string"])
async def test_a_replicas_death_costs_no_request_with_real_tokens(cluster, plain, vllm_url, stop):
    """The untrained model speaks bytes, so cuts fall inside characters too."""
    extra = {"temperature": 0, "max_tokens": 40, "logprobs": True}
    if stop:
        text, _ = await _stream_text(plain, temperature=0, max_tokens=40)
        extra["stop"] = [text[12:15]]
    expected = await plain.chat.completions.create(model=MODEL, messages=ASK, **extra)
    content = (expected.choices[0].message.content, expected.choices[0].finish_reason)
    values = [entry.logprob for entry in expected.choices[0].logprobs.content]
    await cluster.start(replicas=0, eject_after=1000, journal_tokens=1)
    async with _breaking(vllm_url) as (state, url):
        await cluster.bus.put(_member("breaking", url))
        for limit in range(0, len(values), 5):
            state["limit"] = limit
            answer = await cluster.client.chat.completions.create(
                model=MODEL, messages=ASK, **extra
            )
            ours = answer.choices[0]
            assert (ours.message.content, ours.finish_reason) == content, limit
            shown = [entry.logprob for entry in ours.logprobs.content]
            assert shown == pytest.approx(values, abs=1e-4)
            state["limit"] = limit
            assert await _stream_text(cluster.client, **extra) == content, limit
        assert state["cuts"] >= 2  # more, unless a busy machine sends tokens together


FORCED = '<think>grüße</think>ja <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
PARSED = {
    "reasoning, continued": {"max_tokens": 24},
    "two, replayed": {
        "max_tokens": 12,
        "n": 2,
        "temperature": 1,
        "seed": 3,
        "presence_penalty": 0.1,
    },
    "tool call, replayed": {
        "tools": TOOLS,
        "logprobs": True,
        **forced(FORCED),
    },
    "to a stop string": {**forced(FORCED), "tools": TOOLS, "stop": ['{"a":'], "logprobs": True},
    "required, replayed": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 30},
}


# A stream with stop strings has no journal where answers are parsed.
@pytest.mark.parametrize(
    ("name", "stream"),
    [
        (name, stream)
        for name in PARSED
        for stream in ([False] if "stop" in PARSED[name] else [False, True])
    ],
)
async def test_a_replicas_death_costs_no_tool_call_and_no_thought(cluster, vllm, name, stream):
    body = {"model": MODEL, "messages": ASK, "temperature": 0, "stream": stream, **PARSED[name]}
    await cluster.start(replicas=0, eject_after=1000, journal_tokens=1)
    path = "/v1/chat/completions"
    expected = comparable(await cluster.http.post(vllm.parsing + path, json=body))
    async with _breaking(vllm.parsing) as (state, url):
        await cluster.bus.put(_member("breaking", url))
        # What was rendered comes first, then tokens: on a busy machine many in one chunk.
        for limit in (1, 2, 7, 13):
            state["limit"] = limit
            ours = comparable(await cluster.http.post(cluster.url + path, json=body))
            assert ours == expected, limit
        assert state["cuts"] >= 2


async def test_an_agents_loop_with_tools_runs_through_openais_own_client(cluster, vllm):
    """Its streaming helper puts messages together and checks them on the way."""
    await cluster.start(replicas=0)
    await cluster.bus.put(_member("whole", vllm.parsing))
    messages, ids = list(ASK), set()
    for _ in range(2):
        asked = {"model": MODEL, "messages": messages, "tools": TOOLS}
        async with cluster.client.chat.completions.stream(
            **asked, extra_body=forced(FORCED)
        ) as stream:
            whole = await stream.get_final_completion()
        message = whole.choices[0].message
        (call,) = message.tool_calls
        assert whole.choices[0].finish_reason == "tool_calls"
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        assert message.model_extra["reasoning"] == "grüße"
        ids.add(call.id)
        result = {"role": "tool", "tool_call_id": call.id, "content": "8"}
        messages += [message.model_dump(exclude_none=True), result]
    assert len(ids) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_and_calls_that_were_parsed_go_on_from_their_tokens(cluster, vllm, stream):
    """The template writes neither; a client that drops thoughts goes on as well."""
    await cluster.start(replicas=0, session_prompts="recorded")
    await cluster.bus.put(_member("whole", vllm.parsing))
    url = f"{cluster.url}/v1/sessions"
    session = (await cluster.http.post(url)).json()["id"]
    messages = list(ASK)
    asked = {"model": MODEL, "tools": TOOLS, "extra_headers": {"x-session-id": session}}
    for dropped in ({"reasoning"}, set(), set()):
        if stream:
            async with cluster.client.chat.completions.stream(
                **asked, messages=messages, extra_body=forced(FORCED)
            ) as events:
                whole = await events.get_final_completion()
        else:
            whole = await cluster.client.chat.completions.create(
                **asked, messages=messages, extra_body=forced(FORCED)
            )
        message = whole.choices[0].message.model_dump(exclude_none=True, exclude=dropped)
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "8"}
        messages += [message, result]
    assert "reasoning" not in messages[1]
    assert messages[3]["reasoning"] == "grüße"
    done = (await cluster.http.get(f"{url}/{session}")).json()
    assert (done["calls"], done["cuts"]) == ({"first": 1, "extended": 2}, {})
    (made,) = done["trajectories"]
    ended = made["response_token_ids"].count(2)
    assert ended == 3 * 1 + 2 * 1  # those of the answers, and of the tool's results between them


async def test_messages_of_anthropics_api_go_on_from_their_tokens(cluster, vllm_url):
    """Their system and their results of tools are more messages of a chat than of theirs."""
    await cluster.start(replicas=0, session_prompts="recorded")
    await cluster.bus.put(_member("whole", vllm_url))
    session = (await cluster.http.post(f"{cluster.url}/v1/sessions")).json()["id"]
    wanted = {"format": {"type": "json_schema", "schema": {"enum": ["so"]}}}
    body = {"model": MODEL, "max_tokens": 60, "system": "Be brief.", "output_config": wanted}
    messages = list(ASK)
    for number in range(3):
        call = {"type": "tool_use", "id": f"t{number}", "name": "add", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "8"}
        text = {"type": "text", "text": f"and {number}?"}
        answer = await cluster.http.post(
            f"{cluster.url}/v1/messages",
            json=body | {"messages": messages},
            headers={"x-session-id": session},
        )
        said = answer.json()
        assert said["stop_reason"] == "end_turn", said
        messages += [{"role": "assistant", "content": said["content"]}]
        messages += [{"role": "user", "content": "again"}] if number else []
        if not number:  # a call that nobody recorded is a message like any other
            messages += [
                {"role": "user", "content": "use a tool"},
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result, text]},
            ]
    done = (await cluster.http.get(f"{cluster.url}/v1/sessions/{session}")).json()
    assert (done["calls"], done["cuts"]) == ({"first": 1, "extended": 2}, {})


@pytest.mark.parametrize("refers", [False, True])
async def test_responses_go_on_from_their_tokens(cluster, vllm_url, refers):
    """Of an answer that is passed back as items, or that a request refers to."""
    await cluster.start(replicas=0, session_prompts="recorded")
    await cluster.bus.put(_member("whole", vllm_url))
    session = (await cluster.http.post(f"{cluster.url}/v1/sessions")).json()["id"]
    wanted = {"type": "json_schema", "name": "word", "schema": {"enum": ["so"]}}
    body = {"model": MODEL, "max_output_tokens": 60, "instructions": "Be brief."}
    body |= {"text": {"format": wanted}, "input": "larger of a and 7"}
    for _ in range(3):
        answer = await cluster.http.post(
            f"{cluster.url}/v1/responses", json=body, headers={"x-session-id": session}
        )
        said = answer.json()
        assert said["status"] == "completed", said
        new = [{"role": "user", "content": "again"}]
        before = body["input"]
        if isinstance(before, str):
            before = [{"role": "user", "content": before}]
        if refers:
            body |= {"previous_response_id": said["id"], "input": new}
        else:
            body |= {"input": [*before, *said["output"], *new]}
    done = (await cluster.http.get(f"{cluster.url}/v1/sessions/{session}")).json()
    assert (done["calls"], done["cuts"]) == ({"first": 1, "extended": 2}, {})


async def test_thoughts_and_calls_of_responses_go_on_from_their_tokens(cluster, vllm):
    await cluster.start(replicas=0, session_prompts="recorded")
    await cluster.bus.put(_member("whole", vllm.parsing))
    session = (await cluster.http.post(f"{cluster.url}/v1/sessions")).json()["id"]
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    how = {name: value for name, value in forced(FORCED).items() if name != "max_tokens"}
    items = [{"role": "user", "content": "larger of a and 7"}]
    for kept in ({"function_call", "message"}, {"function_call", "message", "reasoning"}, set()):
        body = {"model": MODEL, "input": items, "tools": tools, "max_output_tokens": 200, **how}
        answer = await cluster.http.post(
            f"{cluster.url}/v1/responses", json=body, headers={"x-session-id": session}
        )
        output = answer.json()["output"]
        assert {item["type"] for item in output} == {"reasoning", "message", "function_call"}
        (call,) = [item["call_id"] for item in output if item["type"] == "function_call"]
        items = [*items, *(item for item in output if item["type"] in kept)]
        items += [{"type": "function_call_output", "call_id": call, "output": "8"}]
    done = (await cluster.http.get(f"{cluster.url}/v1/sessions/{session}")).json()
    assert (done["calls"], done["cuts"]) == ({"first": 1, "extended": 2}, {})


async def test_an_interrupted_greedy_answer_equals_an_undisturbed_one_token_by_token(
    cluster, vllm_url
):
    body = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 40}
    body |= {"return_trajectory": True}
    await cluster.start(replicas=0, max_retries=0, journal_tokens=1)
    path, session = f"{cluster.url}/v1/chat/completions", {"x-session-id": "run-1"}
    async with _breaking(vllm_url) as (state, url):
        await cluster.bus.put(_member("first", url))
        whole = (await cluster.http.post(path, json=body)).json()["choices"]
        answer = await _paused(state, lambda: cluster.http.post(path, json=body, headers=session))
        interrupt = f"{cluster.url}/v1/sessions/run-1/interrupt"
        await cluster.http.post(interrupt, json={"min_version": 4})
        newer = dataclasses.replace(_member("second", vllm_url), committed_version=4)
        async with _labelled(vllm_url, 4):
            await cluster.bus.put(newer)
            got = (await answer).json()["choices"]
    for one, other in zip(got, whole, strict=True):
        assert one["message"] == other["message"]
        assert one["finish_reason"] == other["finish_reason"]
        ours, theirs = one["trajectory"], other["trajectory"]
        assert ours["prompt_token_ids"] == theirs["prompt_token_ids"]
        assert ours["token_ids"] == theirs["token_ids"]
        assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-4)
        cut = ours["spans"][0][2]
        assert 0 < cut < 40
        assert ours["spans"] == [[3, 0, cut, "first"], [4, cut, 40, "second"]]


async def _paused(state, ask):
    """An answer in the middle of which its engine says nothing more."""
    async with asyncio.timeout(DEADLINE_S):
        while True:  # on a busy machine all tokens may come together, and the answer is over
            state["pause"] = 2  # what was rendered, and the first tokens
            answer = asyncio.create_task(ask())
            paused = asyncio.create_task(state["paused"].wait())
            await asyncio.wait({answer, paused}, return_when=asyncio.FIRST_COMPLETED)
            if paused.done():
                return answer
            paused.cancel()


@contextlib.asynccontextmanager
async def _labelled(url, version):
    """The same weights under another policy version's name."""
    async with httpx.AsyncClient(timeout=300, verify=False) as http:
        for label in (version, 3):
            body = {"new_version": str(label)}
            (await http.post(f"{url}/update_weight_version", json=body)).raise_for_status()
            if label == version:
                yield


@pytest.mark.parametrize("max_tokens", [4, 400], ids=["whole", "stream"])
async def test_a_grammar_that_the_engine_cannot_compile_is_tried_twice(
    router, vllm_url, max_tokens
):
    grammar = {"grammar": "root ::= Token(99999)"}  # it can be parsed, and no token has that id
    body = {
        "model": MODEL,
        "messages": ASK,
        "max_tokens": max_tokens,
        "structured_outputs": grammar,
    }
    theirs, ours = [
        await router.http.post(f"{url}/v1/chat/completions", json=body, timeout=DEADLINE_S)
        for url in (vllm_url, router.url)
    ]
    assert (theirs.status_code, ours.status_code) == (500, 500), (theirs.text, ours.text)
    assert ours.json()["error"]["type"] == "engine_error"
    assert ours.json()["error"]["message"].startswith("2 attempts ended")
