"""Anthropic's Messages API: https://docs.anthropic.com/en/api/messages."""

import uuid
from typing import Any

from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.doors.blocks import Block, Blocks
from services.router.doors.door import AnswerWriter
from services.router.doors.events import event, named
from services.router.doors.message_events import first_event, last_events, step_events
from services.router.doors.openai_answers import OpenAIAnswers
from services.router.errors import RequestFailed

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


_CACHED = (
    ("cached_tokens", "cache_read_input_tokens"),
    ("created_cache_tokens", "cache_creation_input_tokens"),
)
"""vLLM's names of parts of a prompt, and those of this API, where they are not in the rest."""


class MessagesDoor:
    """See `services.router.doors.door.Door`."""

    async def opened(self, body: Any) -> Any:
        """A body refers to nothing."""
        return body

    def writer(self, request: OpenRequest) -> AnswerWriter:
        """See `Door`."""
        return MessagesAnswers(request)

    def error(self, failure: RequestFailed) -> dict[str, Any]:
        """See `Door`."""
        return messages_error(failure.status, str(failure.body["error"].get("message") or failure))

    def error_events(self, failure: RequestFailed) -> bytes:
        """See `Door`."""
        return event(self.error(failure), "error")

    def passed_on(self, event: str) -> bytes:
        """See `Door`."""
        return named(event)

    def end_of_passed_on(self) -> bytes:
        """A stream ends with its last event."""
        return b""


def messages_error(status: int, message: str) -> dict[str, Any]:
    """An error as this API's clients read it."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


class MessagesAnswers:
    """See `AnswerWriter`."""

    def __init__(self, request: OpenRequest) -> None:
        self._request, self._chat = request, OpenAIAnswers(request)
        self._blocks = Blocks()
        self._begun = False
        self._ending: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        """See `AnswerWriter`."""
        (choice,) = self._chat.whole()["choices"]
        blocks = Blocks.of(choice["message"], [])
        content = [_content(block) for block in blocks] or [{"type": "text", "text": ""}]
        trajectory = {name: choice[name] for name in ("trajectory",) if name in choice}
        return {
            **self._message(content),
            **_stop(choice, blocks),
            "usage": self._usage(),
            **trajectory,
        }

    def events(self, piece: Piece) -> bytes:
        """See `AnswerWriter`."""
        chunk = self._chat.event(piece)
        if chunk is None:
            return b""
        (choice,) = chunk["choices"]
        if choice["finish_reason"] is not None:
            self._ending = choice
        steps = self._blocks.take(choice["delta"], [])
        return self._start() + b"".join(map(step_events, steps))

    def ending(self) -> bytes:
        """See `AnswerWriter`."""
        last = b"".join(map(step_events, self._blocks.end()))
        stop = _stop(self._ending, self._blocks.all)
        trajectory = {name: value for name, value in self._ending.items() if name == "trajectory"}
        return self._start() + last + last_events(stop, self._usage(), **trajectory)

    async def keep(self) -> None:
        """No request refers to an earlier one."""

    def tell_generated(self, failure: RequestFailed) -> None:
        """Errors of this API have no room for it."""

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return first_event(self._message([]), self._usage(0))

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._request.ask.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
        }

    def _usage(self, made: int | None = None) -> dict[str, int]:
        usage = self._chat.usage()
        details = usage["prompt_tokens_details"] or {}
        cached = {name: details[kind] for kind, name in _CACHED if details.get(kind) is not None}
        return {
            "input_tokens": max(0, usage["prompt_tokens"] - sum(cached.values())),
            "output_tokens": usage["completion_tokens"] if made is None else made,
            **cached,
        }


def _content(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": uuid.uuid4().hex}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    call = {"id": block.call, "name": block.name, "input": block.arguments}
    return {"type": "tool_use", **call}


def _stop(choice: dict[str, Any], blocks: list[Block]) -> dict[str, Any]:
    """Why it ended, by vLLM's rules: a call that a stop string cut short must not run."""
    calls = [block for block in blocks if block.kind == "tool"]
    sequence = choice.get("stop_reason")
    if choice.get("finish_reason") == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(sequence, str) and not (calls and "unparsed" not in calls[-1].arguments):
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
