"""A client's request as the router understands it: its own extensions, and what it refuses.

Everything else in the body is for the replica to judge: vLLM validates it when it renders.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.protocol.router import RETURN_TRAJECTORY, SESSION_HEADER, STREAM_BY, StreamBy
from services.router.errors import RequestFailed, bad_request

Endpoint = Literal["chat", "completions"]

_UNSUPPORTED = (
    "echo",
    "suffix",
    "use_beam_search",
    "prompt_logprobs",
    "prompt_embeds",
    "logprob_token_ids",
    "return_tokens_as_token_ids",
    "kv_transfer_params",
    "ec_transfer_params",
    "functions",
    "tools",
)
_RENDER_PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions/render",
    "completions": "/v1/completions/render",
}


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
        return_trajectory: add token ids, logprobs and policy spans to finished choices.
        logprobs: whether the client asked for logprobs.
        top_logprobs: how many alternatives per token it asked for.
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
    return_trajectory: bool
    logprobs: bool
    top_logprobs: int

    @property
    def render_path(self) -> str:
        """Where the body is turned into token ids and sampling parameters."""
        return _RENDER_PATHS[self.endpoint]

    @property
    def streams_tokens(self) -> bool:
        """Whether the client sees tokens before their choice is finished."""
        return self.stream and self.stream_by == "token"

    @classmethod
    def parse(
        cls, endpoint: Endpoint, body: Any, headers: Mapping[str, str], *, max_choices: int
    ) -> "ClientRequest":
        """Read a parsed JSON body that may ask for up to `max_choices` answers.

        Raises:
            RequestFailed: 400, with the field at fault.
        """
        if not isinstance(body, dict):
            raise bad_request("the body must be a JSON object")
        _refuse_unsupported(body)
        if endpoint == "completions":
            _refuse_several_prompts(body.get("prompt"))
        stream = _flag(body, "stream")
        stream_by = body.get(STREAM_BY, "token")
        if stream_by not in ("token", "choice") or (stream_by == "choice" and not stream):
            raise bad_request(f"{STREAM_BY} is token or, with stream, choice", STREAM_BY)
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        if options.get("continuous_usage_stats"):
            raise bad_request("continuous_usage_stats is not supported", "stream_options")
        asked = body.get("logprobs")
        top = body.get("top_logprobs") if endpoint == "chat" else asked
        model = body.get("model")
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        return cls(
            endpoint=endpoint,
            body={k: v for k, v in body.items() if k not in (RETURN_TRAJECTORY, STREAM_BY)},
            answer_id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model if isinstance(model, str) and model else None,
            session=headers.get(SESSION_HEADER) or None,
            choices=_choices(body.get("n"), max_choices),
            stream=stream,
            stream_by=stream_by,
            include_usage=bool(options.get("include_usage")),
            return_trajectory=_flag(body, RETURN_TRAJECTORY),
            logprobs=asked is not None and asked is not False,
            top_logprobs=top if isinstance(top, int) else 0,
        )


def only_prompt(rendered: Any) -> dict[str, Any]:
    """The one generate request in what render answered.

    Raises:
        RequestFailed: render made several, one per prompt.
    """
    if isinstance(rendered, list):
        if len(rendered) != 1:
            raise _several_prompts()
        return dict(rendered[0])
    return dict(rendered)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if body.get(name) not in (None, False, [], {}, ""):
            raise bad_request(f"{name} is not supported by this server", name)
    if body.get("return_token_ids"):
        raise bad_request(f"use {RETURN_TRAJECTORY} to get token ids", "return_token_ids")
    if body.get("tool_choice") not in (None, "none"):
        raise bad_request("tool_choice other than none is not supported", "tool_choice")


def _refuse_several_prompts(prompt: Any) -> None:
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        raise _several_prompts()


def _choices(asked: Any, most: int) -> int:
    # A replica would also read "300": what is counted here has to be what it will run.
    if asked is None:
        return 1
    if type(asked) is not int or not 1 <= asked <= most:
        raise bad_request(f"n must be an integer from 1 to {most}", "n")
    return asked


def _several_prompts() -> RequestFailed:
    return bad_request("one prompt per request is supported; send several requests", "prompt")


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise bad_request(f"{name} must be true or false", name)
    return bool(value)
