"""Answers have exactly the fields of vLLM's, null ones included: typed clients read them all."""

import json
from typing import Any

import httpx
import pytest

from tests.router.request_table import CHAT, COMPLETION, TOOLS, forced
from tests.router.test_real_vllm import ASK, _member
from tests.router.vllm_process import MODEL

CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "two choices": {"n": 2, "seed": 5, "temperature": 1},
    "token ids": {"return_token_ids": True},
    "tools, and no call": {"tools": TOOLS, **forced("one two")},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 2},
    "two choices": {"n": 2, "seed": 5, "temperature": 1},
    "token ids": {"return_token_ids": True},
}
CASES = {f"chat, {name}": (CHAT, {"messages": ASK, **more}) for name, more in CHATS.items()}
CASES |= {
    f"completion, {name}": (COMPLETION, {"prompt": "return max(a", **more})
    for name, more in COMPLETIONS.items()
}
STREAMS: dict[str, dict[str, Any]] = {
    "without usage": {},
    "usage": {"stream_options": {"include_usage": True}},
    "usage throughout": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}

_OF_VLLM_ALONE = {"system_fingerprint", "created_cache_tokens"}
"""The build of the server, and a count that its engine keeps of chats and not of token ids."""


@pytest.fixture
async def router(cluster, vllm):
    """Before vLLM's application with a parser of tool calls."""
    await cluster.start(replicas=0)
    await cluster.bus.put(_member("whole", vllm.tools))
    return cluster


def keys(value: Any) -> Any:
    """The names of all fields, at every level; of a list those of its different parts."""
    if isinstance(value, dict):
        # Bytes may be none, and the names in a completion's logprobs are its tokens. Which event
        # of a stream has the last tokens, and whether one follows that with the prompt's, depends
        # on the moment.
        data = {"bytes", "token_ids", "prompt_token_ids"}
        data |= {"top_logprobs"} if "tokens" in value else set()
        names = sorted(value.keys() - _OF_VLLM_ALONE)
        return {name: None if name in data else keys(value[name]) for name in names}
    if isinstance(value, list):
        return sorted({json.dumps(keys(part)) for part in value})
    return None


async def _both(router, vllm, case, **more):
    path, body = CASES[case]
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 6, **body, **more}
    async with httpx.AsyncClient(timeout=300, trust_env=False) as http:
        answers = [await http.post(url + path, json=asked) for url in (router.url, vllm.tools)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    return answers


def _events(response) -> list[Any]:
    """The data of its events."""
    data = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert data.pop() == "[DONE]"
    return [json.loads(part) for part in data]


@pytest.mark.parametrize("case", CASES)
async def test_a_whole_answer_has_exactly_the_fields_of_vllms(router, vllm, case):
    ours, theirs = await _both(router, vllm, case)
    assert keys(ours.json()) == keys(theirs.json())
    assert _of_prompt([ours.json()]) == _of_prompt([theirs.json()])


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("case", CASES)
async def test_the_events_of_a_stream_have_exactly_the_fields_of_vllms(router, vllm, case, stream):
    answers = await _both(router, vllm, case, stream=True, **STREAMS[stream])
    ours, theirs = [_by_kind(_events(answer)) for answer in answers]
    # There is none in the middle where all tokens come at once.
    assert ours.keys() ^ theirs.keys() <= {"middle"}
    both = ours.keys() & theirs.keys()
    assert {kind: ours[kind] for kind in both} == {kind: theirs[kind] for kind in both}
    ours_of_prompt, theirs_of_prompt = [_of_prompt(_events(answer)) for answer in answers]
    assert ours_of_prompt == theirs_of_prompt


def _of_prompt(events: list[Any]) -> list[tuple[int, list[int]]]:
    """The tokens of prompts, each with the number of its event."""
    parts = [(at, part) for at, event in enumerate(events) for part in (event, *event["choices"])]
    return [(at, ids) for at, part in parts if (ids := part.get("prompt_token_ids")) is not None]


def _by_kind(events: list[Any]) -> dict[str, Any]:
    """The fields of the events of each kind, and those of all deltas together: which event has the
    last text depends on the moment."""
    kinds: dict[str, list[Any]] = {}
    said: set[str] = set()
    for event in events:
        deltas = [choice.pop("delta", {}) for choice in event["choices"]]
        said.update(*deltas)
        if not deltas:
            kind = "usage"
        elif any("role" in delta for delta in deltas):
            kind = "opening"
        else:
            ends = any(choice["finish_reason"] for choice in event["choices"])
            kind = "last" if ends else "middle"
        kinds.setdefault(kind, []).append(event)
    return {"deltas": said} | {kind: keys(some) for kind, some in kinds.items()}


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_usage_throughout_a_stream_counts_the_tokens_so_far(router, vllm, path):
    case = next(name for name in CASES if CASES[name][0] == path and name.endswith("token ids"))
    answers = await _both(router, vllm, case, stream=True, **STREAMS["usage throughout"])
    for answer in answers:
        *events, last = _events(answer)
        made = 0
        for event in events:
            made += sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
            assert event["usage"]["completion_tokens"] == made
        assert last["usage"]["completion_tokens"] == made == 6
