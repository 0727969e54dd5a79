"""Requests, good and bad, whose answers a client must not be able to tell from vLLM's own."""

from typing import Any, NamedTuple

from tests.router.tiny_model import MARKS

Body = dict[str, Any]

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MODEL = "tiny"
_ASK = [{"role": "user", "content": "larger of a and 7"}]
_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOLS: list[Body] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "for tests",
            "parameters": {
                "type": "object",
                "properties": {"a": {"enum": [1, 2]}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("add", "halve")
]
_NAMED = {"type": "function", "function": {"name": "halve"}}


def forced(text: str) -> Body:
    """An answer of just this text, its marks being tokens of their own."""
    bias = {str(token): 50 for token in MARKS}
    return {"structured_outputs": {"choice": [text]}, "logit_bias": bias, "max_tokens": 200}


class Case(NamedTuple):
    """One request: to the application with parsers or the one without."""

    path: str
    body: Any
    parsing: bool = False


def cases() -> list[Case]:
    """All of them; every good one also streamed, in one of three ways by turns, and some bad."""
    good = [Case(CHAT, _chat(**extra)) for extra in _CHATS]
    good += [Case(CHAT, _chat(messages=messages)) for messages in _MESSAGES]
    good += [Case(COMPLETION, _completion(**extra)) for extra in _COMPLETIONS]
    good += [Case(CHAT, _chat(**extra), parsing=True) for extra in _PARSED]
    bad = [Case(CHAT, _chat(**extra)) for extra in (*_BAD, *_BAD_CHATS)]
    bad += [Case(COMPLETION, _completion(**extra)) for extra in (*_BAD, *_BAD_COMPLETIONS)]
    bad += [Case(CHAT, _chat(**extra), parsing=True) for extra in _BAD_TOOLS]
    bad += [Case(path, body) for path in (CHAT, COMPLETION) for body in _NO_REQUESTS]
    streamed = [
        case._replace(body=case.body | _STREAMS[number % len(_STREAMS)])
        for number, case in enumerate(good)
        # vLLM's streams of these depend on the moment: text that is held back for a stop string
        # comes with tokens that are not its own, and parsers look at both.
        if not (case.parsing and case.body.get("stop"))
    ]
    bad_streams = [
        case._replace(body=case.body | {"stream": True})
        for case in bad[::3]
        if isinstance(case.body, dict) and "stream" not in case.body
    ]
    return good + streamed + bad + bad_streams


def _chat(**extra: Any) -> Body:
    return {"model": MODEL, "messages": _ASK, "temperature": 0, "max_tokens": 6} | extra


def _completion(**extra: Any) -> Body:
    return {"model": MODEL, "prompt": "return max(a", "temperature": 0, "max_tokens": 6} | extra


_STREAMS: list[Body] = [
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
_SAMPLED = {"temperature": 1, "seed": 5}
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
_EITHER: list[Body] = [
    {},
    {"stop": "e"},
    {"stop": ["e", "x", " "], "include_stop_str_in_output": True},
    {"stop": [], "stop_token_ids": [40, 41, 42, 60], "max_tokens": 12},
    {"ignore_eos": True, "min_tokens": 6},
    {"n": 2, **_SAMPLED},
    {"n": 3, **_SAMPLED, "stop": ["a"], "max_tokens": 12},
    {**_SAMPLED, "top_k": 5},
    {**_SAMPLED, "top_p": 0.5, "min_p": 0.01},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5, "max_tokens": 12},
    {"repetition_penalty": 1.5, "max_tokens": 12},
    {"logit_bias": {"70": 100}},
    {"allowed_token_ids": [70, 71, 72]},
    {"bad_words": ["a", "b"]},
    {"structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 20},
    {"structured_outputs": {"regex": "[ab]{3}"}, "max_tokens": 20},
    {"structured_outputs": {"json": _SCHEMA}, "max_tokens": 40},
    {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
        "max_tokens": 40,
    },
    {"response_format": {"type": "json_object"}, "max_tokens": 8},
    {"response_format": {"type": "text"}},
    {"structured_outputs": {"choice": ["yes"]}, "n": 2, "max_tokens": 9, **_SAMPLED},
    {"logit_bias": {"1": 100}, "skip_special_tokens": False},
    {"logit_bias": {"1": 100}},
    {"logit_bias": {"2": 100}},
    {"return_token_ids": True, "n": 2, **_SAMPLED},
    {"truncate_prompt_tokens": 5},
    {"user": "u", "metadata": {"a": "b"}, "unknown_field": 7},
    {"cache_salt": "salt"},
    {"max_tokens": 1, "seed": -1},
    {"max_tokens": None, "stop": ["a", "e"]},
    {"stream": None, "n": None, "logprobs": None},
    {"repetition_detection": {"max_pattern_size": 2, "min_count": 3}, "max_tokens": 20},
]
# Not `logprob_token_ids`: vLLM 0.32 gives others of the same batch wrong `top_logprobs` then.
_CHATS: list[Body] = [
    *_EITHER,
    {"logprobs": True},
    {"logprobs": 0},
    {"logprobs": 1},
    {"logprobs": "yes"},
    {"logprobs": True, "top_logprobs": 4, **_SAMPLED},
    {"logprobs": True, "top_logprobs": 0, "stop": "e"},
    {"logprobs": True, "top_logprobs": 2, "n": 2, **_SAMPLED, "return_token_ids": True},
    {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
    {"max_tokens": None, "max_completion_tokens": 3},
    {"echo": True, "add_generation_prompt": False},
    {"return_prompt_text": True},
    {"tools": TOOLS, "tool_choice": "none"},
    {"functions": [{"name": "f", "parameters": {}}], "function_call": "auto"},
    {"chat_template_kwargs": {"enable_thinking": False}},
]
_MESSAGES: list[Any] = [
    [{"role": "system", "content": "grüße"}, {"role": "user", "content": "世界 🎈"}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    [*_ASK, {"role": "assistant", "content": "max"}, {"role": "user", "content": ""}],
    [
        *_ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ],
]
_COMPLETIONS: list[Body] = [
    *_EITHER,
    {"logprobs": 0},
    {"logprobs": False},
    {"logprobs": True},
    {"logprobs": 1, **_SAMPLED},
    {"logprobs": 3, "n": 2, "temperature": 2, "seed": 8, "max_tokens": 12},
    {"logprobs": 1, "echo": True},
    {"logprobs": 1, "return_tokens_as_token_ids": True},
    {"prompt": [10, 11, 12]},
    {"prompt": ["a", "bc"]},
    {"prompt": ["a"], "n": 2, **_SAMPLED},
    {"prompt": [[10, 11], [12]], "n": 2, **_SAMPLED, "return_token_ids": True},
    {"echo": True, "return_token_ids": True},
    {"max_tokens": 16},
]
_PARSED: list[Body] = [
    {},
    {"n": 2, **_SAMPLED},
    {"stop": "e"},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "none"},
    {"tools": TOOLS, "tool_choice": _NAMED, "max_tokens": 40},
    {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60},
    {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60, "n": 2, **_SAMPLED},
    {"tools": TOOLS, "tool_choice": "required", "max_tokens": 9},
    *(
        {"tools": TOOLS, **forced(text), **extra}
        for text in (
            f"<think>one</think>{_CALL}",
            f"<think>one</think>two {_CALL}\n{_CALL}",
            "<think>one</think>two",
            "one</think>",
        )
        for extra in ({}, {"logprobs": True, "return_token_ids": True})
    ),
    *(
        {
            "tools": TOOLS,
            **forced(f"<think>1</think>{_CALL}{_CALL}"),
            **extra,
        }
        for extra in (
            {"parallel_tool_calls": False},
            {"tool_choice": "none"},
            {"include_reasoning": False, "logprobs": True, "return_token_ids": True},
            {"max_tokens": 30},
        )
    ),
    forced("<think>one</think>two"),
    forced("<think>one</think>two") | {"include_reasoning": False},
    forced("one two"),
    forced("<think>one</think>two, three") | {"stop": ["wo, t"]},
    forced("<think>one</think>two, three") | {"stop": ["ne"], "include_stop_str_in_output": True},
    forced(f"<think>grüße</think>{_CALL}more") | {"tools": TOOLS, "stop": ["more"]},
    forced(f"<think>one</think>{_CALL}") | {"tools": TOOLS, "stop": ["add"]},
    forced("<think>one") | {"max_tokens": 3},
    {"logit_bias": {"2": 100}},
]
_BAD: list[Body] = [
    {"model": "other"},
    {"model": 7},
    {"temperature": -1},
    {"temperature": "hot"},
    {"top_p": 2},
    {"top_k": -5},
    {"min_p": 7},
    {"n": 0},
    {"n": -1},
    {"n": "many"},
    {"n": 100000},
    {"max_tokens": -1},
    {"max_tokens": 0},
    {"max_tokens": 100000},
    {"max_tokens": "all"},
    {"min_tokens": 50},
    {"stop": 7},
    {"stop": [""]},
    {"stop_token_ids": ["x"]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"100000": 1}},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [100000]},
    {"presence_penalty": 5},
    {"repetition_penalty": 0},
    {"seed": "x"},
    {"stream": "maybe"},
    {"stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": 7},
    {"structured_outputs": {"regex": "[", "choice": ["a"]}},
    {"structured_outputs": {"regex": "["}},
    {"structured_outputs": {"json": "{"}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "poem"}},
    {"prompt_logprobs": 1},
    {"prompt_logprobs": 1000},
    {"use_beam_search": True, "n": 2, "max_tokens": 3},
    {"truncate_prompt_tokens": 100000},
    {"priority": 3},
    {"cache_salt": ""},
    {"bad_words": [""]},
]
_BAD_CHATS: list[Body] = [
    {"messages": None},
    {"messages": []},
    {"messages": "hello"},
    {"messages": [{"role": "user"}]},
    {"messages": [{"content": "a"}]},
    {"messages": [{"role": "user", "content": "a " * 600}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"logprobs": True, "top_logprobs": 100},
    {"top_logprobs": 2},
    {"logprobs": "some"},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": _NAMED},
    {"tools": [{"type": "function"}]},
    {"tools": []},
    {"add_generation_prompt": True, "continue_final_message": True},
    {"chat_template": "{{ messages }}"},
]
_BAD_COMPLETIONS: list[Body] = [
    {"prompt": None},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": [100000]},
    {"prompt": [-1]},
    {"prompt": {"a": 1}},
    {"prompt": "a " * 600},
    {"prompt": [["a"], [1]]},
    {"logprobs": 100},
    {"logprobs": -5},
    {"suffix": "end"},
    {"echo": True, "stream": True, "max_tokens": 0},
]
_BAD_TOOLS: list[Body] = [
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "missing"}}},
    {"tools": TOOLS, "tool_choice": "sometimes"},
    {"tools": [], "tool_choice": "required"},
    {"tool_choice": "auto"},
    {"tool_choice": _NAMED},
    {"tools": [{"type": "function", "function": {"description": "nameless"}}]},
]
_NO_REQUESTS: list[Any] = [{}, [], "text", None, 7, b"{", b""]
