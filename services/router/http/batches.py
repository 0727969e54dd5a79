"""`/v1/chat/completions/batch`: several conversations, each of them answered as a chat."""

from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.http.json_body import AsciiJson, disconnected, read_body
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, bad_request, unreadable_body
from services.router.http.answer_endpoint import parsed
from services.router.http.inner_call import inner_call
from services.router.request.client_request import answer_id, request_name
from services.side_by_side import gathered, race

BATCH_PATH = "/v1/chat/completions/batch"

_REFUSED = "stream", "tools", "use_beam_search"
"""What vLLM does not do in batches."""

_COUNTED = "prompt_tokens", "completion_tokens", "total_tokens"
_OF_ONE_CHAT = ("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
                "ec_transfer_params", "metrics")  # fmt: skip
"""Fields beside `choices` that vLLM leaves empty here."""


class BatchEndpoint:
    """An ASGI application that has each conversation answered by the endpoint of chats.

    So each has its own journal, and a place among the open requests; all have the client's session.

    Args:
        chats: the endpoint.
        config: the router's settings; `max_choices` bounds the conversations.
    """

    def __init__(self, chats: ASGIApp, config: RouterConfig) -> None:
        self._chats, self._config = chats, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request until it is answered or the client is gone."""
        config = self._config

        async def answer() -> None:
            await AsciiJson(await self._answer(scope, raw))(scope, receive, send)

        try:
            raw = await read_body(
                receive,
                max_bytes=config.max_body_bytes,
                timeout_s=config.client_read_s,
                refused=RequestFailed,
            )
            await race({"answer": answer(), "disconnected": disconnected(receive)})
        except RequestFailed as failure:
            await failure.response()(scope, receive, send)

    async def _answer(self, scope: Scope, raw: bytes) -> dict[str, Any]:
        body = parsed(raw)
        if not isinstance(body, dict):
            raise unreadable_body("the body must be a JSON object")
        conversations = _conversations(body, self._config.max_choices)
        name = request_name(Headers(scope=scope), _string(body, "request_id"))
        chats = [
            {**body, "messages": messages, "request_id": f"{name}_{number}"}
            for number, messages in enumerate(conversations)
        ]
        answers = await gathered(inner_call(self._chats, scope, chat) for chat in chats)
        return {**_joined(answers), "id": answer_id("chat", name)}


def _conversations(body: dict[str, Any], bound: int) -> list[list[Any]]:
    """The lists of messages of a batch.

    Raises:
        RequestFailed: 400, with the field at fault.
    """
    for name in _REFUSED:
        if body.get(name):
            raise bad_request(f"Batch chat completions do not support {name}: leave it out", name)
    if body.get("n") not in (None, 1):
        raise bad_request("Batch chat completions do not support n > 1: set n to 1", "n")
    transfer = body.get("kv_transfer_params")
    if isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None:
        name = "kv_transfer_params.prompt_token_ids"
        raise bad_request(f"{name} is one prompt, and a batch has one for each conversation", name)
    given = body.get("messages")
    lists = isinstance(given, list) and all(one and isinstance(one, list) for one in given)
    if not given or not lists:
        message = "messages must be a list of conversations, each a list of messages"
        raise bad_request(message, "messages")
    if len(given) > bound:
        message = f"a batch has at most {bound} conversations (router.max_choices), got"
        raise bad_request(f"{message} {len(given)}", "messages")
    conversations: list[list[Any]] = given
    return conversations


def _string(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if not isinstance(value, str | None):
        raise bad_request(f"{name} must be a string", name)
    return value


def _joined(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer, in which each conversation is a choice."""
    choices = [{**_choice(answer), "index": number} for number, answer in enumerate(answers)]
    used = [answer.get("usage") or {} for answer in answers]
    usage = {name: sum(one.get(name) or 0 for one in used) for name in _COUNTED}
    return {
        **answers[0],
        **dict.fromkeys(_OF_ONE_CHAT),
        "choices": choices,
        "usage": {**usage, "prompt_tokens_details": None, "completion_tokens_details": None},
    }


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise RequestFailed(502, "malformed", "a conversation was not answered with one choice")
    return choices[0]
