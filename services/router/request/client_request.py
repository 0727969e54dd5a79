"""A client's request as the router understands it.

The router reads little of a body and judges nothing that vLLM judges: what it cannot read, or
what no token journal can answer, the replica answers by itself (`pass_through`).
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ValidationError

from services.protocol.router import RETURN_TRAJECTORY, SESSION_HEADER, STREAM_BY, StreamBy
from services.protocol.session import SESSION_PREFIX
from services.router.errors import bad_request, unreadable_body
from services.router.request.fixed_settings import FixedSettings
from services.router.request.generate_numbers import generate_numbers
from services.router.request.needs import Needs

Endpoint = Literal["chat", "tokens", "completions", "messages", "responses", "generate"]

PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "tokens": "/v1/chat/completions/tokens",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "generate": "/inference/v1/generate",
}
"""Where replicas, and the router, serve each."""

_PREFIXES: dict[Endpoint, str] = {
    "chat": "chatcmpl-",
    "tokens": "chatcmpl-",
    "completions": "cmpl-",
    "messages": "msg_",
    "responses": "resp_",
    "generate": "",
}
REQUEST_ID_HEADER = "x-request-id"
_MAX_SESSION = 128
_UNJOURNALED = (
    "background",
    "content_parts",
    "echo",
    "ec_transfer_params",
    "enable_response_messages",
    "kv_transfer_params",
    "logprob_token_ids",
    "previous_input_messages",
    "prompt_embeds",
    "prompt_logprob_token_ids",
    "prompt_logprobs",
    "return_mm_kwargs",
    "return_prompt_text",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "suffix",
    "use_beam_search",
)
"""Fields whose answers hold what generate's stream does not have."""

_OUTPUT_LOGPROBS = "message.output_text.logprobs"


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
    """One request for an answer.

    Attributes:
        endpoint: which kind.
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
        fixed: settings of its session that hold in place of its own.
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
    fixed: FixedSettings | None = None

    def under(self, fixed: FixedSettings | None) -> Self:
        """The same with the settings of its session."""
        if fixed is None:
            return self
        body = {**self.body, "model": fixed.model}
        return replace(self, model=fixed.model, body=body, fixed=fixed)

    @property
    def path(self) -> str:
        """Where a replica answers such a request by itself."""
        return PATHS[self.endpoint]

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat, or comes to one when it is rendered."""
        return self.endpoint in ("chat", "tokens", "messages", "responses")

    @property
    def shows_tokens(self) -> bool:
        """Whether the client sees tokens as such, beside text or without."""
        return self.logprobs or self.return_token_ids or self.endpoint == "generate"

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
        return self.is_chat and bool(self.body.get("tools"))

    @property
    def role(self) -> str:
        """The role of the message that answers a chat."""
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
        read, unjournaled = _read(endpoint, passed_on)
        stream, stream_by = bool(read.stream), body.get(STREAM_BY, "token")
        _check_stream_by(endpoint, stream_by, stream=stream)
        return_trajectory = body.get(RETURN_TRAJECTORY)
        if return_trajectory not in (None, True, False):
            raise bad_request(f"{RETURN_TRAJECTORY} must be true or false", RETURN_TRAJECTORY)
        _check_choices(read.n, _prompts(body), max_choices)
        name = request_name(headers, read.request_id)
        options = (stream and read.stream_options) or _StreamOptions()
        asked = read.logprobs
        top = asked if endpoint in ("completions", "generate") else read.top_logprobs
        # A key wins: agents' clients send ids of their own by that header (verifiers 0.4 does).
        session = session_key(headers) or headers.get(SESSION_HEADER)
        if len(session or "") > _MAX_SESSION:
            message = f"{SESSION_HEADER} is longer than {_MAX_SESSION} characters"
            raise bad_request(message, SESSION_HEADER)
        return cls(
            endpoint=endpoint,
            body=passed_on,
            answer_id=answer_id(endpoint, name),
            created=int(time.time()),
            model=read.model or None,
            session=session,
            choices=read.n or 1,
            stream=stream,
            stream_by=stream_by,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
            return_trajectory=bool(return_trajectory),
            return_token_ids=bool(read.return_token_ids),
            # A chat's is a flag, a completion's a number, of which 0 is one, too.
            logprobs=asked is not None if endpoint in ("completions", "generate") else bool(asked),
            top_logprobs=top or 0,
            unjournaled=unjournaled,
            # Agents that show their sessions as keys have no other name.
            needs=Needs.of(body, headers, flow=session_key(headers) or caller or session or ""),
        )


def session_key(headers: Mapping[str, str]) -> str | None:
    """The session whose id a client shows as its API key, None if it shows another or none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    shown = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return shown.strip() if shown.strip().startswith(SESSION_PREFIX) else None


def request_name(headers: Mapping[str, str], given: str | None) -> str:
    """What the client calls its request, by the header or in the body; else a random name."""
    return headers.get(REQUEST_ID_HEADER) or given or uuid.uuid4().hex


def answer_id(endpoint: Endpoint, name: str) -> str:
    """The id of the answer to a request of this name."""
    prefix = _PREFIXES[endpoint]
    # A client of the Responses API may choose the whole id.
    return name if endpoint == "responses" and name.startswith(prefix) else prefix + name


def _read(endpoint: Endpoint, body: dict[str, Any]) -> tuple[_Read, str | None]:
    try:
        read = _Read.model_validate(_fields(endpoint, body))
        if endpoint == "generate":
            generate_numbers(_params(body))
    except ValidationError as unreadable:
        # vLLM reads the same field, and says what is wrong with it in its own words.
        return _Read(), str(unreadable.errors()[0]["loc"][0])
    token_ids = body.get("token_ids")
    if endpoint == "generate" and not (token_ids and isinstance(token_ids, list)):
        return read, "token_ids"
    if endpoint == "generate" and not isinstance(body.get("sampling_params"), dict):
        return read, "sampling_params"
    names = {**_params(body), **body} if endpoint == "generate" else body
    given = ((name, names.get(name)) for name in _UNJOURNALED)
    # Not 0, which prompt_logprobs may be.
    absent: tuple[Any, ...] = (None, "", [], {})
    asked = (name for name, value in given if value is not False and value not in absent)
    return read, next(asked, "prompt" if _prompts(body) > 1 else None)


def _fields(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """The body as a chat or a completion would have it."""
    if endpoint in ("chat", "tokens", "completions"):
        return body
    names = ["model", "stream", "request_id"]
    if endpoint == "generate":
        names += ["stream_options", "return_token_ids"]
    read = {name: body[name] for name in names if name in body}
    if endpoint == "generate":
        params = _params(body)
        return read | {name: params[name] for name in ("n", "logprobs") if name in params}
    include = body.get("include")
    if endpoint == "responses" and isinstance(include, list) and _OUTPUT_LOGPROBS in include:
        read |= {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
    return read


def _params(body: dict[str, Any]) -> dict[str, Any]:
    params = body.get("sampling_params")
    return params if isinstance(params, dict) else {}


def _check_stream_by(endpoint: Endpoint, stream_by: Any, *, stream: bool) -> None:
    if stream_by == "choice" and endpoint not in ("chat", "tokens", "completions"):
        raise bad_request(f"{STREAM_BY}: choice is for chats and completions", STREAM_BY)
    if stream_by not in ("token", "choice") or (stream_by == "choice" and not stream):
        raise bad_request(f"{STREAM_BY} is token or, with stream, choice", STREAM_BY)


def _check_choices(n: int | None, prompts: int, bound: int) -> None:
    if n is not None and not 1 <= n <= bound:
        raise bad_request(f"n must be from 1 to {bound}, got {n}", "n")
    if (choices := (n or 1) * prompts) > bound:
        message = f"n times the number of prompts must be at most {bound}, got {choices}"
        raise bad_request(message, "prompt")


def _prompts(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        return len(prompt)
    return 1
