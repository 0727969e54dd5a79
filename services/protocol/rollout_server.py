"""Requests of a rollout server's public port besides vLLM's own."""

from dataclasses import dataclass
from typing import Any, Literal

Rendered = Literal["chat", "tokens", "completions", "messages", "responses"]
"""Requests that a replica renders: the APIs of OpenAI, and Anthropic's Messages; `tokens` is a chat
whose body has its prompt under `tokens`, too, which is taken as it is."""

CUT = "cut"
"""Under this name stands beside `request` why a conversation does not go on from its recorded
tokens, as a `CutReason`."""

RENDER_AND_GENERATE = "/inference/v1/render_and_generate"
"""Takes a `GenerationOrder`. Answers like `/inference/v1/generate`, and has under `request`
what that would take: in an event before the first token, or in the one object of a whole answer.
Another replica can go on from there. Beside it, under `chat`, stands the chat request that a
request of the Messages or Responses API comes to."""

PARSE_ANSWER = "/inference/v1/parse_answer"
"""Takes what vLLM's `/v1/chat/completions/derender` takes, and under `COUNTED` the tokens of the
choice so far. Answers like that, and tells under `REASONING_TOKENS` how many are reasoning."""

COUNTED = "counted_token_ids"
REASONING_TOKENS = "reasoning_tokens"

HISTORY_DEPENDENT = (
    "presence_penalty",
    "frequency_penalty",
    "structured_outputs",
    "bad_words",
    "repetition_detection",
    "thinking_token_budget",
    "extra_args",
    "watermarking",
)
"""Sampling parameters whose effect depends on where the prompt ends and the answer begins. Not
`repetition_penalty`: it counts prompt and generated tokens alike."""

UNMASKED: dict[str, int | None] = {
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "min_tokens": 0,
    "thinking_token_budget": None,
    "trace_decode_token_ids": None,
}
"""Sampling parameters with which an engine samples from all tokens, unless there is a grammar. The
logprobs that it tells are of what it samples from, and the trainer computes those of all tokens."""


@dataclass(frozen=True, kw_only=True)
class RecordedStart:
    """The beginning of a conversation, as an engine had it: it is not rendered again.

    Attributes:
        token_ids: the prompt of the newest recorded answer, and the answer.
        messages: how many messages or input items of the request these are, the answer included.
    """

    token_ids: list[int]
    messages: int


@dataclass(frozen=True, kw_only=True)
class GenerationOrder:
    """A client's request as the router has it answered: rendered and generated at once.

    Attributes:
        endpoint: the API of the request.
        body: what the client sent, without our extensions.
        request_id: the answer's id.
        shown_early: the client sees tokens before the answer is finished. An answer that can
            only be made again from the prompt then gets a seed, so that it comes out the same.
        offers_tools: the answer may be a tool call, which a parser finds in its tokens.
        logprobs: the client or a recorded session needs them.
        interval: tokens in a chunk after the first; None for the engine's own way. An answer
            that cannot be longer comes in one piece.
        fixed: settings that hold in place of the body's: under `sampling` sampling parameters, to
            which `UNMASKED` belong, and under `max_tokens` a bound.
        start: a `RecordedStart` to go on from, where the template allows it; None: all messages
            are rendered.
    """

    endpoint: Rendered
    body: dict[str, Any]
    request_id: str
    shown_early: bool
    offers_tools: bool
    logprobs: bool
    interval: int | None
    fixed: dict[str, Any] | None = None
    start: dict[str, Any] | None = None
