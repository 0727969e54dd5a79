"""A client's request as the router understands it.

The router reads little of a body and judges nothing that vLLM judges: what it cannot read, or
what no token journal can answer, the replica answers by itself (`pass_through`).
"""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from services.protocol.router import (
    MIN_VERSION_HEADER,
    PRIORITY_HEADER,
    RETURN_TRAJECTORY,
    SESSION_HEADER,
    STREAM_BY,
    StreamBy,
)
from services.router.errors import bad_request, unreadable_body

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
"""Fields whose answers hold what generate's stream does not have."""

_HEAD_CHARACTERS = 4096
_LOOK_BACK = 16
"""Messages that one turn may add, such as an answer and the results of many tools."""


@dataclass(frozen=True, kw_only=True)
class PromptPrefix:
    """Keys of a prompt: requests that begin alike can share a KV cache, without naming anything.

    The prompt up to its first user message is the same for all samples of a group. A conversation
    that goes on repeats all that its last call has said before its new messages. Keys are digests,
    so that the tables that hold them hold no text.

    Attributes:
        group: its beginning; None: nothing to go by.
        whole: all of it; None while it is nothing but a beginning.
        earlier: beginnings longer than the group's that may have been a prompt themselves,
            longest first.
    """

    group: str | None = None
    whole: str | None = None
    earlier: tuple[str, ...] = ()

    @classmethod
    def of(cls, body: dict[str, Any]) -> "PromptPrefix":
        """Of any body: the replica validates it."""
        messages = body.get("messages")
        if isinstance(messages, list):
            return cls._of_messages(body.get("model"), messages)
        prompt = body.get("prompt")
        if not isinstance(prompt, str | list) or not prompt:
            return NO_PREFIX
        # Completions have no messages to go by: what begins alike for so long is a group.
        head = json.dumps([body.get("model"), prompt[:_HEAD_CHARACTERS]])
        return cls(group=_digest(head.encode()).hexdigest())

    @classmethod
    def _of_messages(cls, model: Any, messages: list[Any]) -> "PromptPrefix":
        state, keys = _digest(json.dumps(model).encode()), []
        for message in messages:
            state.update(json.dumps(message).encode())
            keys.append(state.hexdigest())
        if not keys:
            return NO_PREFIX
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        head = roles.index("user") if "user" in roles else 0
        if head == len(keys) - 1:
            return cls(group=keys[head])
        earlier = reversed(keys[max(head + 1, len(keys) - 1 - _LOOK_BACK) : -1])
        return cls(group=keys[head], whole=keys[-1], earlier=tuple(earlier))


NO_PREFIX = PromptPrefix()


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a request says of itself, or what follows from it.

    Attributes:
        min_version: lowest policy version of a replica that may answer; None: any.
        priority: lower goes first, as in vLLM; 0 unless the client says something else.
        flow: requests that wait under one name take turns with those under another.
        prefix: how the prompt begins.
    """

    min_version: int | None = None
    priority: int = 0
    flow: str = ""
    prefix: PromptPrefix = NO_PREFIX

    @classmethod
    def of(cls, body: dict[str, Any], headers: Mapping[str, str], *, flow: str) -> "Needs":
        """Of a client's request.

        Raises:
            RequestFailed: 400, with the header at fault.
        """
        own = body.get("priority")
        priority = _integer(headers, PRIORITY_HEADER)
        if priority is None:
            priority = own if isinstance(own, int) else 0
        version = _integer(headers, MIN_VERSION_HEADER)
        if version is not None and version < 0:
            raise bad_request(f"{MIN_VERSION_HEADER} must be 0 or more", MIN_VERSION_HEADER)
        return cls(min_version=version, priority=priority, flow=flow, prefix=PromptPrefix.of(body))

    def at_least(self, version: int) -> "Needs":
        """The same, of a replica that serves this version or a newer one."""
        known = self.min_version or 0
        return replace(self, min_version=version) if version > known else self


NO_NEEDS = Needs()


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
        read, unjournaled = _read(passed_on)
        stream, stream_by = bool(read.stream), body.get(STREAM_BY, "token")
        if stream_by not in ("token", "choice") or (stream_by == "choice" and not stream):
            raise bad_request(f"{STREAM_BY} is token or, with stream, choice", STREAM_BY)
        return_trajectory = body.get(RETURN_TRAJECTORY)
        if return_trajectory not in (None, True, False):
            raise bad_request(f"{RETURN_TRAJECTORY} must be true or false", RETURN_TRAJECTORY)
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
            return_trajectory=bool(return_trajectory),
            return_token_ids=bool(read.return_token_ids),
            # A chat's is a flag, a completion's a number, of which 0 is one, too.
            logprobs=bool(asked) if endpoint == "chat" else asked is not None,
            top_logprobs=top or 0,
            unjournaled=unjournaled,
            needs=Needs.of(body, headers, flow=caller or session or ""),
        )


def _read(body: dict[str, Any]) -> tuple[_Read, str | None]:
    try:
        read = _Read.model_validate(body)
    except ValidationError as unreadable:
        # vLLM reads the same field, and says what is wrong with it in its own words.
        return _Read(), str(unreadable.errors()[0]["loc"][0])
    given = ((name, body.get(name)) for name in _UNJOURNALED)
    # Not 0, which prompt_logprobs may be.
    absent: tuple[Any, ...] = (None, "", [], {})
    asked = (name for name, value in given if value is not False and value not in absent)
    return read, next(asked, "prompt" if _prompts(body) > 1 else None)


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


def _digest(data: bytes) -> "blake2b":
    return blake2b(data, digest_size=16)


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise bad_request(f"{name} must be an integer, not {value[:40]!r}", name) from None
