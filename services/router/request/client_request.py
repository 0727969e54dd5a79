"""A client's request as the router understands it.

The router reads little of a body and judges nothing that vLLM judges: what it cannot read, or
what no token journal can answer, the replica answers by itself (`pass_through`).
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from services.protocol.router import RETURN_TRAJECTORY, SESSION_HEADER, STREAM_BY, StreamBy
from services.router.errors import bad_request, unreadable_body
from services.router.request.needs import Needs

Endpoint = Literal["chat", "completions"]

_REQUEST_ID_HEADER = "x-request-id"
_MAX_SESSION = 128
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_UNJOURNALED = (
    "echo",
    "ec_transfer_params",
    "kv_transfer_params",
    "logprob_token_ids",
    "prompt_embeds",
    "prompt_logprobs",
    "return_mm_kwargs",
    "return_prompt_text",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "suffix",
    "use_beam_search",
)
"""Fields whose answers hold what generate's stream does not tell."""


class _StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Read(BaseModel):
    """The fields that the router reads, as leniently as vLLM reads them."""

    model: str | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    logprobs: int | bool | None = None
    top_logprobs: int | None = 0
    request_id: str | None = None
    return_token_ids: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ClientRequest:
    """One chat or completion request.

    Attributes:
        endpoint: which of the two.
        body: what the replica renders: the client's body without our extensions.
        answer_id: id of the answer.
        created: Unix time of the request in seconds.
        model: served model name, None for any.
        session: value of the session header.
        choices: how many answers (`n`) the client wants.
        stream: answer in server-sent events.
        stream_by: an event per chunk of tokens, or one per finished choice.
        include_usage: a usage event at the end of a stream.
        continuous_usage: usage in every event of a stream.
        return_trajectory: add token ids, logprobs and policy spans to finished choices.
        return_token_ids: add token ids as vLLM does.
        logprobs: whether the client asked for logprobs.
        top_logprobs: how many alternatives per token it asked for.
        unjournaled: the field that only the replica itself can answer, None if there is none.
        needs: what it needs of a replica, and its place in the line.
    """

    endpoint: Endpoint
    body: dict[str, Any]
    answer_id: str
    created: int
    model: str | None
    session: str | None
    choices: int
    stream: bool
    stream_by: StreamBy
    include_usage: bool
    continuous_usage: bool
    return_trajectory: bool
    return_token_ids: bool
    logprobs: bool
    top_logprobs: int
    unjournaled: str | None
    needs: Needs

    @property
    def path(self) -> str:
        """Where a replica answers such a request by itself."""
        return _PATHS[self.endpoint]

    @property
    def prompts(self) -> int:
        """How many prompts it has; each gets `choices` answers."""
        return _prompts(self.body)

    @property
    def streams_tokens(self) -> bool:
        """Whether the client sees tokens before their choice is finished."""
        return self.stream and self.stream_by == "token"

    @property
    def offers_tools(self) -> bool:
        """Whether the answer of a chat may be a tool call."""
        return self.endpoint == "chat" and bool(self.body.get("tools"))

    @property
    def role(self) -> str:
        """Who speaks in the answer to a chat."""
        if self.body.get("add_generation_prompt") is not False:
            return "assistant"
        last = self.body["messages"][-1]
        return str(last.get("role", "assistant"))

    @classmethod
    def parse(
        cls,
        endpoint: Endpoint,
        body: Any,
        headers: Mapping[str, str],
        *,
        max_choices: int,
        caller: str = "",
    ) -> "ClientRequest":
        """Read a parsed JSON body that may ask for up to `max_choices` answers.

        Callers take turns when replicas are full, and sessions where callers have no names.

        Raises:
            RequestFailed: 400, with the field at fault.
        """
        if not isinstance(body, dict):
            raise unreadable_body("the body must be a JSON object")
        passed_on = {k: v for k, v in body.items() if k not in (RETURN_TRAJECTORY, STREAM_BY)}
        read, unjournaled = _read(passed_on)
        stream, stream_by = bool(read.stream), body.get(STREAM_BY, "token")
        if stream_by not in ("token", "choice") or (stream_by == "choice" and not stream):
            raise bad_request(f"{STREAM_BY} is token or, with stream, choice", STREAM_BY)
        _check_choices(read.n, _prompts(body), max_choices)
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        name = headers.get(_REQUEST_ID_HEADER) or read.request_id or uuid.uuid4().hex
        options = (stream and read.stream_options) or _StreamOptions()
        asked = read.logprobs
        top = read.top_logprobs if endpoint == "chat" else asked
        session = headers.get(SESSION_HEADER) or None
        if len(session or "") > _MAX_SESSION:
            message = f"{SESSION_HEADER} is longer than {_MAX_SESSION} characters"
            raise bad_request(message, SESSION_HEADER)
        return cls(
            endpoint=endpoint,
            body=passed_on,
            answer_id=f"{prefix}-{name}",
            created=int(time.time()),
            model=read.model or None,
            session=session,
            choices=read.n or 1,
            stream=stream,
            stream_by=stream_by,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
            return_trajectory=_flag(body, RETURN_TRAJECTORY),
            return_token_ids=bool(read.return_token_ids),
            # A chat's is a flag, a completion's a number, of which 0 is one, too.
            logprobs=bool(asked) if endpoint == "chat" else asked is not None,
            top_logprobs=top or 0,
            unjournaled=unjournaled,
            needs=Needs.of(body, headers, flow=caller or session or ""),
        )

    def check_needs_no_journal(self, name: str, *, recorded: bool) -> None:
        """Refuse what only a journal can give to a request that gets none because of `name`.

        Raises:
            RequestFailed: 400, with the field at fault.
        """
        wants = {
            RETURN_TRAJECTORY: self.return_trajectory,
            STREAM_BY: self.stream_by == "choice",
            "a recorded session": recorded,
        }
        for extension in (extension for extension, wanted in wants.items() if wanted):
            message = f"{extension} needs tokens that an answer with {name} does not tell"
            raise bad_request(f"{message}; leave one of the two out", name)


def _read(body: dict[str, Any]) -> tuple[_Read, str | None]:
    try:
        read = _Read.model_validate(body)
    except ValidationError as unreadable:
        # vLLM reads the same field, and says what is wrong with it in its own words.
        return _Read(), str(unreadable.errors()[0]["loc"][0])
    asked = (name for name in _UNJOURNALED if _is_asked(body.get(name)))
    return read, next(asked, "prompt" if _has_several_prompts(body.get("prompt")) else None)


def _is_asked(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _check_choices(n: int | None, prompts: int, bound: int) -> None:
    if n is not None and not 1 <= n <= bound:
        raise bad_request(f"n must be from 1 to {bound}, got {n}", "n")
    if (choices := (n or 1) * prompts) > bound:
        message = f"n times the number of prompts must be at most {bound}, got {choices}"
        raise bad_request(message, "prompt")


def _prompts(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and _has_several_prompts(prompt) else 1


def _has_several_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise bad_request(f"{name} must be true or false", name)
    return bool(value)
