"""Two hundred requests of every kind, each with an answer that can be told in advance.

The model is untrained and its tokens are bytes, so only letters are allowed where a stop
string shall be met, and lengths are fixed by `max_tokens`.
"""

from dataclasses import dataclass
from typing import Any

from services.rollout_server.config import RolloutServerConfig

REQUESTS = 200
MODEL = RolloutServerConfig.model_fields["served_model_name"].default
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
LETTERS = list(range(66, 74))
"""Token ids of a to h in the byte tokenizer: pairs of them come up every sixteen tokens."""

TOOL_TOKEN_IDS = 258, 259
STOPS = ["ab", "cd", "ef", "gh"]
LONG = 128
"""Tokens of a few answers that are still on their way when the others have come."""

_FREE = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}
_SAMPLED = {**_FREE, "temperature": 1}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
_CALLING = {
    **_FREE,
    "ignore_eos": False,
    "max_tokens": 2 * len(CALL),
    "tools": [_TOOL],
    "structured_outputs": {"choice": [CALL]},
    # The parser looks for the marks, which could also be written letter by letter.
    "logit_bias": {str(token): 50 for token in TOOL_TOKEN_IDS},
}
_KINDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**_FREE, "stream": True, "max_tokens": LONG}),
    (CHAT, {**_FREE, "logprobs": True, "top_logprobs": 2}),
    (COMPLETION, {**_FREE, "stream": True, "logprobs": 1}),
    (CHAT, {**_FREE, "stream": True, "stop": STOPS, "allowed_token_ids": LETTERS}),
    (COMPLETION, {**_FREE, "stop": STOPS, "allowed_token_ids": LETTERS}),
    (CHAT, {**_FREE, "presence_penalty": 0.5, "frequency_penalty": 0.5}),
    (CHAT, {**_SAMPLED, "stream": True, "n": 2, "seed": 7, "presence_penalty": 0.1}),
    (CHAT, {**_FREE, "stream": True, "structured_outputs": {"regex": "[ab]{32}"}}),
    (CHAT, {**_FREE, "repetition_penalty": 1.2}),
    (CHAT, _CALLING),
    (COMPLETION, {**_SAMPLED, "n": 2, "seed": 11}),
    (CHAT, {**_SAMPLED, "stream": True, "seed": 13, "logprobs": True}),
]


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        number: tells it from all others.
        path: the endpoint.
        body: what is sent.
        session: its session header, if it has one.
    """

    number: int
    path: str
    body: dict[str, Any]
    session: str | None

    @property
    def goes_on_sampling(self) -> bool:
        """Whether a cut leaves it with another random stream than the one it began with."""
        return bool(self.body["temperature"]) and "presence_penalty" not in self.body


def asks() -> list[Ask]:
    """All of them, with prompts of their own; every third belongs to a session."""
    made = []
    for number in range(REQUESTS):
        path, extra = _KINDS[number % len(_KINDS)]
        words = f"say {number}"
        prompt: dict[str, Any] = (
            {"prompt": words}
            if path == COMPLETION
            else {"messages": [{"role": "user", "content": words}]}
        )
        usage = {"stream_options": {"include_usage": True}} if extra.get("stream") else {}
        body = {"model": MODEL, "return_trajectory": True, **prompt, **extra, **usage}
        session = f"episode-{number % 7}" if number % 3 == 0 else None
        made.append(Ask(number, path, body, session))
    return made
