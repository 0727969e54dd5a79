"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses."""

import time
from typing import Any

from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.doors.blocks import Blocks
from services.router.doors.door import AnswerWriter
from services.router.doors.events import event, named
from services.router.doors.openai_answers import OpenAIAnswers
from services.router.doors.response_items import ItemEvents, Tools, item_of
from services.router.errors import RequestFailed, bad_request
from services.router.trajectories.shared_sessions import SessionRecords

EARLIER = "previous_response_id"
"""Field with the response that a request goes on from."""

_TOLD = ("instructions", "metadata", "reasoning", "text", "user", "max_tool_calls", "prompt")
"""Fields of a request that its response repeats."""
_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling parameters that a response tells, and vLLM's defaults."""


class ResponsesDoor:
    """See `services.router.doors.door.Door`.

    Args:
        sessions: keep responses that later requests go on from.
    """

    def __init__(self, sessions: SessionRecords) -> None:
        self._sessions = sessions
        self._earlier: str | None = None
        self._new: list[dict[str, Any]] = []
        self._answers: ResponsesAnswers | None = None

    async def opened(self, body: Any) -> Any:
        """The body with the items of the responses that it goes on from."""
        if not isinstance(body, dict):
            return body
        self._new = new_items(body)
        self._earlier = body.get(EARLIER)
        if self._earlier is None:
            return body
        if not isinstance(self._earlier, str):
            raise bad_request(f"{EARLIER} must be the id of a response", EARLIER)
        history = await self._sessions.response_items(self._earlier)
        rest = {name: value for name, value in body.items() if name != EARLIER}
        return {**rest, "input": history + self._new}

    def writer(self, request: OpenRequest) -> AnswerWriter:
        """See `Door`."""
        self._answers = ResponsesAnswers(request, self._sessions, self._new, self._earlier)
        return self._answers

    def error(self, failure: RequestFailed) -> dict[str, Any]:
        """See `Door`."""
        return failure.body

    def error_events(self, failure: RequestFailed) -> bytes:
        """See `Door`; OpenAI's own client raises it, because it has `error`."""
        error = failure.body["error"]
        told = {name: error.get(name) for name in ("code", "message", "param")}
        number = self._answers.numbered if self._answers else 0
        return event({"type": "error", **told, "error": error, "sequence_number": number}, "error")

    def passed_on(self, event: str) -> bytes:
        """See `Door`."""
        return named(event)

    def end_of_passed_on(self) -> bytes:
        """A stream ends with its last event."""
        return b""


class ResponsesAnswers:
    """See `AnswerWriter`.

    Args:
        request: the request; its body as the client sent it.
        sessions: keep the response.
        new: the request's own input items.
        earlier: the response that it goes on from.

    Attributes:
        numbered: events so far.
    """

    def __init__(
        self,
        request: OpenRequest,
        sessions: SessionRecords,
        new: list[dict[str, Any]],
        earlier: str | None,
    ) -> None:
        self._request, self._chat = request, OpenAIAnswers(request)
        self._sent = request.ask.body  # it becomes a chat when it is rendered
        self._sessions, self._new, self._earlier = sessions, new, earlier
        self._tools = Tools.of(self._sent.get("tools"))
        self._blocks, self._items = Blocks(), ItemEvents(self._tools)
        self.numbered = 0
        self._last: dict[str, Any] = {}
        self._answer: dict[str, Any] | None = None

    def whole(self) -> dict[str, Any]:
        """See `AnswerWriter`."""
        if self._answer is None:
            (self._last,) = self._chat.whole()["choices"]
            entries = (self._last["logprobs"] or {}).get("content") or []
            blocks = Blocks.of(self._last["message"], entries)
            self._answer = self._ended([item_of(block, self._tools) for block in blocks])
        return self._answer

    def events(self, piece: Piece) -> bytes:
        """See `AnswerWriter`."""
        chunk = self._chat.event(piece)
        if chunk is None:
            return b""
        (choice,) = chunk["choices"]
        if choice["finish_reason"] is not None:
            self._last = choice
        entries = (choice["logprobs"] or {}).get("content") or []
        return self._opening() + self._told(self._blocks.take(choice["delta"], entries))

    def ending(self) -> bytes:
        """See `AnswerWriter`."""
        opening = self._opening()
        last = self._told(self._blocks.end())
        self._answer = self._ended(self._items.done)
        kind = f"response.{self._answer['status']}"
        return opening + last + self._event({"type": kind, "response": self._answer})

    async def keep(self) -> None:
        """See `AnswerWriter`."""
        if self._sent.get("store") is False:
            return
        answer = self._answer or self.whole()
        await self._sessions.keep_response(answer, self._new, self._earlier)

    def tell_generated(self, failure: RequestFailed) -> None:
        """See `AnswerWriter`."""
        self._chat.tell_generated(failure)

    def _opening(self) -> bytes:
        if self.numbered:
            return b""
        response = self._response("in_progress", [])
        kinds = "response.created", "response.in_progress"
        return b"".join(self._event({"type": kind, "response": response}) for kind in kinds)

    def _told(self, steps: Any) -> bytes:
        return b"".join(self._event(one) for step in steps for one in self._items.of(step))

    def _event(self, data: dict[str, Any]) -> bytes:
        numbered = {**data, "sequence_number": self.numbered}
        self.numbered += 1
        return event(numbered, data["type"])

    def _ended(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        cut = self._last.get("finish_reason") == "length"
        trajectory = {name: value for name, value in self._last.items() if name == "trajectory"}
        return {
            **self._response("incomplete" if cut else "completed", output),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(),
            **trajectory,
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        params, ask = self._request.sampling_params, self._request.ask
        return {
            **unanswered(self._sent, name=ask.answer_id, status=status),
            **{name: params.get(name, value) for name, value in _SAMPLING.items()},
            "created_at": ask.created,
            "model": self._request.model,
            "output": output,
            "previous_response_id": self._earlier,
            "max_output_tokens": params.get("max_tokens"),
            "top_logprobs": ask.top_logprobs if ask.logprobs else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._chat.usage()
        cached = self._request.cached_tokens or 0
        reasoning = usage["completion_tokens_details"] or {}
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": reasoning.get("reasoning_tokens", 0)},
            "total_tokens": usage["total_tokens"],
        }


def new_items(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A request's own input items."""
    given = body.get("input")
    said = {"type": "message", "role": "user", "content": given}
    return given if isinstance(given, list) else [said]


def unanswered(sent: dict[str, Any], *, name: str, status: str) -> dict[str, Any]:
    """A response as far as its request alone decides it.

    Args:
        sent: body of the request.
        name: id of the response.
        status: of the response.
    """
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": sent.get("model") or "",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **{name: sent.get(name) for name in _TOLD},
        **{name: sent.get(name, value) for name, value in _SAMPLING.items()},
        EARLIER: sent.get(EARLIER),
        "parallel_tool_calls": sent.get("parallel_tool_calls", True),
        "tool_choice": sent.get("tool_choice") or ("auto" if sent.get("tools") else "none"),
        "tools": sent.get("tools") or [],
        "max_output_tokens": sent.get("max_output_tokens"),
        "top_logprobs": None,
        "background": False,
        "service_tier": sent.get("service_tier", "auto"),
        "truncation": sent.get("truncation") or "disabled",
        "store": sent.get("store", True),
    }
