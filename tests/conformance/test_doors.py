"""Every door in front of a real engine says what vLLM's own route says behind it."""

import json
from copy import deepcopy

import httpx
import pytest

from services.rollout_server.http.chat_requests import chat_of_responses
from tests.conformance.saying import ASK, call, says
from tests.router.sameness import comparable
from tests.router.vllm_process import ALIAS, MODEL

_DEADLINE_S = 300.0
_TOOL = {
    "name": "add",
    "description": "one more",
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
MESSAGES = {"model": MODEL, "messages": ASK, "max_tokens": 12, "temperature": 0}
RESPONSES = {"model": MODEL, "input": ASK, "max_output_tokens": 12, "temperature": 0}
_SCHEMA = _TOOL["parameters"]
MESSAGES_TOOL = {"name": "add", "description": "one more", "input_schema": _SCHEMA}
ON_MESSAGES = {
    "plain": {},
    "a system prompt": {"system": "be brief"},
    "a system of blocks": {"system": [{"type": "text", "text": "be brief"}]},
    "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    "a stop sequence": {"stop_sequences": ["e", "a"]},
    "an earlier tool call": {
        "tools": [MESSAGES_TOOL],
        "messages": [
            *ASK,
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
        ],
    },
    "a tool that is named": {
        "tools": [MESSAGES_TOOL],
        "tool_choice": {"type": "tool", "name": "add"},
        "max_tokens": 40,
    },
    "a format": {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}},
                 "max_tokens": 40},
    "no messages": {"messages": None},
    "no room": {"max_tokens": 0},
    "too long": {"messages": [{"role": "user", "content": "x" * 4000}]},
}  # fmt: skip
RESPONSES_TOOL = {"type": "function", **_TOOL}
ON_RESPONSES = {
    "plain": {},
    "text": {"input": "larger of a and 7"},
    "instructions": {"instructions": "be brief"},
    "parts": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a format": {"text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}},
                 "max_output_tokens": 40},
    "an earlier tool call": {
        "tools": [RESPONSES_TOOL],
        "input": [
            *ASK,
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
        ],
    },
    "an earlier answer": {
        "input": [
            *ASK,
            {"type": "reasoning", "id": "r1", "summary": [],
             "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "a", "annotations": []}]},
            {"role": "user", "content": "larger of b and 7"},
        ],
    },
    "a tool call": {"tools": [RESPONSES_TOOL], **says(call("add", a=1)), "max_output_tokens": 80},
    "thoughts": {**says("<think>hm</think>yes"), "max_output_tokens": 80},
    "no input": {"input": None},
    "an unknown item": {"input": [{"type": "riddle"}]},
    "too long": {"input": "x" * 4000},
}  # fmt: skip
_UNRENDERED = ("no input", "an unknown item", "too long")
_MADE_ANEW = ("id", "created_at", "item_id", "call_id", "signature", "request_id", "created")
_OURS = ("store", "input_tokens_details")
"""vLLM does not tell the first, and counts there what depends on who asked before."""


def _same(value):
    """What two servers must agree on; absent, null and empty are the same to a client."""
    if isinstance(value, dict):
        if "input_tokens" in value:  # how many were cached depends on who asked first
            read = sum(
                value.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation")
            )
            details = _same(value.get("output_tokens_details"))
            return value["input_tokens"] + read, value.get("output_tokens"), details
        if "reasoning_tokens" in value:  # vLLM counts there by turns of its own tools as well
            return value["reasoning_tokens"]
        if value.get("type") == "response.incomplete":  # vLLM says completed, OpenAI does not
            value = {**value, "type": "response.completed"}
        if value.get("type") == "reasoning":  # vLLM gives it a status in a stream alone
            value = {name: part for name, part in value.items() if name != "status"}
        left_out = _MADE_ANEW + _OURS
        kept = {name: _same(part) for name, part in value.items() if name not in left_out}
        return {name: part for name, part in kept.items() if part not in (None, [], {}, "")}
    if isinstance(value, list):
        return [_same(part) for part in value]
    if isinstance(value, str):
        # With several tokens at once, as on a busy machine, vLLM's parser leaves a mark in, and a
        # character before it that is cut in two.
        return value.replace("<think>", "").replace("\ufffd", "")
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


async def _both(router, url, path, body):
    async with httpx.AsyncClient(timeout=_DEADLINE_S, trust_env=False) as client:
        return await client.post(router.url + path, json=body), await client.post(
            url + path, json=body
        )


def _events(response):
    """Their names and data, neighbours of a kind joined: where chunks end depends on the moment."""
    joined = []
    for part in filter(None, response.text.split("\n\n")):
        lines = dict(line.split(": ", 1) for line in part.splitlines())
        data = json.loads(lines["data"])
        assert lines["event"] == data["type"]
        data.pop("sequence_number", None)
        if joined and joined[-1]["type"] == data["type"] and "delta" in data:
            _add(joined[-1], data)
        else:
            joined.append(data)
    return joined


def _add(known, data):
    if isinstance(data["delta"], str):
        known["delta"] += data["delta"]
        known.setdefault("logprobs", []).extend(data.get("logprobs") or [])
        return
    for name, value in data["delta"].items():
        if name != "type" and isinstance(value, str):
            known["delta"][name] = known["delta"].get(name, "") + value


def _agree(ours, theirs):
    assert ours.status_code == theirs.status_code, (ours.text, theirs.text)
    if theirs.status_code >= 400:
        assert ours.json()["error"]["message"]
        return
    if theirs.headers["content-type"].startswith("text/event-stream"):
        assert _same(_events(ours)) == _same(_events(theirs))
        return
    assert _same(ours.json()) == _same(theirs.json())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", ON_MESSAGES)
async def test_messages_are_answered_as_vllm_does(parsing, vllm, case, stream):
    body = {**MESSAGES, **ON_MESSAGES[case], "stream": stream}
    _agree(*await _both(parsing, vllm.parsing, "/v1/messages", body))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", ON_RESPONSES)
async def test_responses_are_answered_as_vllm_does(parsing, vllm, case, stream):
    body = {**RESPONSES, **ON_RESPONSES[case], "stream": stream}
    _agree(*await _both(parsing, vllm.parsing, "/v1/responses", body))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "more",
    [{}, {"output_mode": "text"}, {"return_token_ids": True}, {"token_ids": []}],
    ids=["tokens", "text", "prompt", "nothing"],
)
async def test_generate_is_answered_as_vllm_does(router, vllm, more, stream):
    params = {"max_tokens": 8, "temperature": 0, "logprobs": 2}
    body = {"model": MODEL, "token_ids": [5, 6, 7], "sampling_params": params, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    ours, theirs = await _both(router, vllm.plain, "/inference/v1/generate", {**body, **more})
    assert ours.status_code == theirs.status_code
    if theirs.status_code >= 400:
        return
    assert _generated(ours, stream=stream) == _generated(theirs, stream=stream)


def _generated(response, *, stream):
    """Token ids, logprobs, text, reasons and usage, whatever the chunks."""
    parts = [] if stream else [response.json()]
    if stream:
        data = [one.removeprefix("data: ") for one in response.text.split("\n\n") if one]
        assert data.pop() == "[DONE]"
        parts = [json.loads(one) for one in data]
    tokens, entries, text, reasons = [], [], "", []
    for choice in (choice for part in parts for choice in part["choices"]):
        tokens += choice["token_ids"]
        entries += (choice["logprobs"] or {}).get("content") or []
        text += choice.get("text") or ""
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    known = [
        (one.get("token_id"), pytest.approx(one["logprob"], abs=1e-3), len(one["top_logprobs"]))
        for one in entries
    ]
    prompts = [part["prompt_token_ids"] for part in parts if part.get("prompt_token_ids")]
    counted = {name: n for name, n in parts[-1]["usage"].items() if name.endswith("_tokens")}
    return tokens, known, text, reasons, prompts, counted


async def test_generate_names_tokens_by_their_ids(router):
    params = {"max_tokens": 3, "temperature": 0, "logprobs": 1}
    body = {"model": MODEL, "token_ids": [5, 6, 7], "sampling_params": params}
    answer = (await router.http.post(f"{router.url}/inference/v1/generate", json=body)).json()
    (choice,) = answer["choices"]
    named = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert named == [f"token_id:{token}" for token in choice["token_ids"]]


async def test_a_prompt_of_tokens_is_taken_as_it_is(router):
    asked = {"model": MODEL, "messages": ASK, "max_tokens": 6, "temperature": 0}
    told = {**asked, "return_token_ids": True}
    chat = (await router.http.post(f"{router.url}/v1/chat/completions", json=told)).json()
    path = f"{router.url}/v1/chat/completions/tokens"
    same = await router.http.post(path, json={**told, "tokens": chat["prompt_token_ids"]})
    assert same.json()["choices"] == chat["choices"]
    other = await router.http.post(path, json={**told, "tokens": [5, 6, 7]})
    assert other.json()["prompt_token_ids"] == [5, 6, 7]
    wrong = await router.http.post(path, json={**told, "tokens": ["x"]})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "tokens"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"model": MODEL, "prompt": "hi there"}),
        ("/tokenize", {"model": MODEL, "messages": ASK}),
        ("/detokenize", {"model": MODEL, "tokens": [5, 6, 7]}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": ASK}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": None}),
        ("/v1/chat/completions/render", {"model": MODEL, "messages": ASK}),
    ],
)
async def test_what_makes_no_tokens_is_answered_by_a_replica(router, vllm, path, body):
    _agree(*await _both(router, vllm.plain, path, body))


async def test_a_tokenizer_is_told_as_vllm_tells_it(router, vllm):
    ours = await router.http.get(f"{router.url}/tokenizer_info")
    theirs = await router.http.get(f"{vllm.plain}/tokenizer_info")
    assert ours.json() == theirs.json()
    assert ours.json()["tokenizer_class"]


_THOUGHT = "<think>hm</think>yes"


@pytest.mark.parametrize("stream", [None, {}, {"continuous_usage_stats": True}])
async def test_tokens_of_thoughts_are_counted_as_vllm_counts_them(parsing, vllm, stream):
    body = {"model": MODEL, "messages": ASK, "max_tokens": 80, "n": 2, **says(_THOUGHT)}
    if stream is not None:
        body |= {"stream": True, "stream_options": {"include_usage": True, **stream}}
    both = await _both(parsing, vllm.parsing, "/v1/chat/completions", body)
    ours, theirs = ([usage for usage in _usages(one) if usage] for one in both)
    assert ours[-1]["completion_tokens_details"] == theirs[-1]["completion_tokens_details"]
    assert ours[-1]["completion_tokens_details"]["reasoning_tokens"] >= 2
    assert all(usage["completion_tokens_details"] for usage in ours)


def _usages(response):
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [response.json()["usage"]]
    data = [one.removeprefix("data: ") for one in response.text.split("\n\n") if one]
    assert data.pop() == "[DONE]"
    return [json.loads(one).get("usage") for one in data]


async def test_a_batch_of_chats_is_answered_as_vllm_does(router, vllm):
    chats = [ASK, [{"role": "user", "content": "larger of b and 7"}]]
    body = {"model": MODEL, "messages": chats, "max_tokens": 12, "temperature": 0}
    more = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    ours, theirs = await _both(router, vllm.plain, "/v1/chat/completions/batch", {**body, **more})
    assert comparable(ours) == comparable(theirs)
    assert set(ours.json()) == set(theirs.json())


@pytest.mark.parametrize("path", ["/v1/embeddings", "/score", "/pooling", "/rerank"])
async def test_what_the_model_cannot_do_is_refused_as_an_error_of_openais(router, path):
    answer = await router.http.post(router.url + path, json={"model": MODEL, "input": "x"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


async def test_probes_of_platforms_are_answered(router):
    async def got(path):
        return await router.http.get(router.url + path)

    assert (await got("/ping")).status_code == 200
    assert (await got("/version")).json()["version"]
    assert (await got("/load")).json() == {"server_load": 0}
    assert (await got(f"/v1/models/{MODEL}")).json()["id"] == MODEL
    assert (await got("/v1/models/nobody")).status_code == 404
    posted = {"model": MODEL, "messages": ASK, "max_tokens": 2}
    chat = await router.http.post(f"{router.url}/invocations", json=posted)
    assert chat.json()["object"] == "chat.completion"
    neither = await router.http.post(f"{router.url}/invocations", json={"model": MODEL})
    assert neither.status_code == 400


@pytest.mark.parametrize("case", [one for one in ON_RESPONSES if one not in _UNRENDERED])
async def test_a_response_has_the_prompt_that_vllm_renders(router, vllm, case):
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    body = {**RESPONSES, **ON_RESPONSES[case]}
    chat = chat_of_responses(ResponsesRequest.model_validate(deepcopy(body)))
    async with httpx.AsyncClient(timeout=_DEADLINE_S, trust_env=False) as client:
        theirs = await client.post(f"{vllm.parsing}/v1/responses/render", json=body)
        sent = json.loads(
            chat.model_dump_json(exclude_unset=True, exclude_none=True, by_alias=True)
        )
        sent.pop("structured_outputs", None)  # vLLM cannot read what it writes of them
        if "structured_outputs" in body:
            sent["structured_outputs"] = body["structured_outputs"]
        ours = await client.post(f"{vllm.parsing}/v1/chat/completions/render", json=sent)
    assert theirs.status_code == ours.status_code == 200, (theirs.text, ours.text)
    assert ours.json()["token_ids"] == theirs.json()["token_ids"]
    params = theirs.json()["sampling_params"]
    assert params.pop("extra_args") == {}
    assert ours.json()["sampling_params"] == params


async def test_every_name_of_a_model_is_served(router):
    from dataclasses import replace

    (member,) = router.bus.members.values()
    await router.bus.put(replace(member, aliases=(ALIAS,)))
    membership = router.reservations.membership
    while not membership.leased(ALIAS):
        await membership.wait_for_change(1.0)
    answer = await router.client.chat.completions.create(model=ALIAS, messages=ASK, max_tokens=2)
    assert answer.model == MODEL
    names = [model.id async for model in router.client.models.list()]
    assert names == sorted([MODEL, ALIAS])
