"""Answers in OpenAI's JSON shape as vLLM writes it, from journals and pieces."""

from typing import Any

from starlette.types import Send

from services.http.event_stream import StallTimer
from services.http.json_body import json_bytes
from services.router.answering.journal import ChoiceJournal, Piece
from services.router.answering.open_request import OpenRequest
from services.router.errors import RequestFailed

_OBJECTS = {
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
    ("completions", False): "text_completion",
    ("completions", True): "text_completion",
}


class HttpAnswer:
    """Writes an HTTP response; each write must be taken within `write_s` seconds.

    Attributes:
        stall_timer: ends a write that is not; None while nothing watches.
    """

    def __init__(self, send: Send, write_s: float) -> None:
        self._send, self._write_s = send, write_s
        self.stall_timer: StallTimer | None = None
        self.begun = False

    async def whole(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        """A complete JSON response."""
        payload = json_bytes(body)
        fixed = {"content-type": "application/json", "content-length": str(len(payload))}
        await self._begin(status, fixed | headers)
        await self._write(payload, more=False)

    async def begin_stream(self, headers: dict[str, str]) -> None:
        """Start of a stream of server-sent events."""
        fixed = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        await self._begin(200, fixed | headers)

    async def event(self, data: bytes) -> None:
        """One server-sent event."""
        await self._write(b"data: %b\n\n" % data, more=True)

    async def comment(self, text: str) -> None:
        """A line that clients leave out, in the stream, which it begins if need be."""
        if not self.begun:
            await self.begin_stream({})
        await self._send(
            {"type": "http.response.body", "body": b": %b\n\n" % text.encode(), "more_body": True}
        )

    async def end_stream(self) -> None:
        """The end marker."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def fail(self, failure: RequestFailed) -> None:
        """An error, as a response or, inside a stream, as an event."""
        if self.begun:
            await self.event(json_bytes(failure.body))
            await self.end_stream()
            return
        await self.whole(failure.status, failure.body, failure.headers)

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, data: bytes, *, more: bool) -> None:
        if self.stall_timer is not None:
            self.stall_timer.begin(self._write_s)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        if self.stall_timer is not None:
            self.stall_timer.end()


class AnswerWriter:
    """Writes one request's answer, whole or as stream events."""

    def __init__(self, request: OpenRequest) -> None:
        self._request, self._ask = request, request.ask
        self._begun: set[int] = set()
        self._called_tools: set[int] = set()
        self._offsets: dict[int, int] = {}

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [self._whole_choice(journal) for journal in self._request.journals]
        return {**self._frame(choices), **self._chat_prompt(), "usage": self._whole_usage()}

    def event(self, piece: Piece) -> dict[str, Any] | None:
        """The stream event for a piece, None when there is nothing to tell."""
        if self._ask.stream_by == "choice":
            return self._frame([self._choice_event(piece.journal)]) if piece.finished else None
        index = piece.journal.index
        tells = piece.text if piece.delta is None else piece.delta
        tokens = piece.token_ids and (self._ask.logprobs or self._ask.return_token_ids)
        first = index not in self._begun
        if not (tells or (tokens and not self._hides_tokens) or piece.finished or first):
            return None
        event = self._frame([self._token_event(piece, first)])
        if not self._begun:
            event |= self._chat_prompt()
        self._begun.add(index)
        return event | ({"usage": self._usage(piece.made)} if self._ask.continuous_usage else {})

    def usage_event(self) -> dict[str, Any]:
        """The last event of a stream whose client asked for usage."""
        return {**self._frame([]), "usage": self._whole_usage()}

    def tell_generated(self, failure: RequestFailed) -> None:
        """Add what there is of the answer to its error, but for what the client has already."""
        ask, journals = self._ask, self._request.journals
        unsent = [journal for journal in journals if not (ask.stream and journal.settled)]
        choices = [self._generated(journal) for journal in unsent if journal.token_ids]
        if choices and not (ask.streams_tokens or self._hides_tokens):
            generated = {"choices": choices, "usage": self._whole_usage()}
            failure.body["error"]["generated"] = generated

    def _generated(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice = {"index": journal.index, "text": journal.text}
        return choice | self._token_ids(journal.token_ids, first=True) | self._trajectory(journal)

    @property
    def _hides_tokens(self) -> bool:
        """Tokens would tell the reasoning that the client wants to be left out."""
        hidden = self._ask.body.get("include_reasoning") is False
        return hidden and self._request.parser is not None

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        ask = self._ask
        return {
            "id": ask.answer_id,
            "object": _OBJECTS[ask.endpoint, ask.stream],
            "created": ask.created,
            "model": self._request.model,
            "choices": choices,
        }

    def _chat_prompt(self) -> dict[str, Any]:
        """A chat's answer tells its prompt once, a completion's with every choice."""
        if self._ask.endpoint == "chat" and self._ask.return_token_ids:
            return {"prompt_token_ids": self._request.prompt_token_ids}
        return {}

    def _usage(self, made: int) -> dict[str, Any]:
        prompt = len(self._request.prompt_token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
        }

    def _whole_usage(self) -> dict[str, Any]:
        made = sum(len(journal.token_ids) for journal in self._request.journals)
        details = self._request.prompt_details
        return self._usage(made) | ({"prompt_tokens_details": details} if details else {})

    def _whole_choice(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": journal.index}
        if self._ask.endpoint == "completions":
            choice["text"] = journal.text
        elif journal.message is None:
            choice["message"] = {"role": self._ask.role, "content": journal.text}
        else:
            choice["message"] = journal.message
        choice["logprobs"] = self._logprobs(journal.index, journal.entries)
        choice |= self._token_ids(journal.token_ids, first=True)
        return choice | self._ending(journal, by_call=self._ends_by_call(journal))

    def _ends_by_call(self, journal: ChoiceJournal) -> bool:
        """Whether a whole choice's finish reason is `tool_calls`, by vLLM's rules."""
        if journal.message is None or not self._ask.offers_tools or self._names_tool:
            return False
        if self._ask.body.get("tool_choice") == "required":
            return journal.finish_reason == "stop"
        return bool(journal.message.get("tool_calls"))

    @property
    def _names_tool(self) -> bool:
        return isinstance(self._ask.body.get("tool_choice"), dict)

    def _choice_event(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice = self._whole_choice(journal)
        if self._ask.endpoint == "chat":
            choice["delta"] = choice["message"]
        return choice

    def _token_event(self, piece: Piece, first: bool) -> dict[str, Any]:
        index = piece.journal.index
        choice: dict[str, Any] = {"index": index}
        if self._ask.endpoint == "completions":
            choice["text"] = piece.text
        else:
            delta = {"content": piece.text} if piece.delta is None else piece.delta
            if delta.get("tool_calls"):
                self._called_tools.add(index)
            opening = {"role": self._ask.role, "content": ""} if first else {}
            choice["delta"] = opening | delta
        choice["logprobs"] = self._logprobs(index, piece.entries)
        choice |= self._token_ids(piece.token_ids, first=first)
        if piece.finished:
            stopped = piece.journal.finish_reason == "stop"
            by_call = index in self._called_tools and stopped and not self._names_tool
            return choice | self._ending(piece.journal, by_call=by_call)
        choice["finish_reason"] = None
        return choice

    def _token_ids(self, token_ids: list[int], *, first: bool) -> dict[str, Any]:
        if not self._ask.return_token_ids or self._hides_tokens:
            return {}
        if self._ask.endpoint == "completions" and first:
            prompt = self._request.prompt_token_ids
            return {"token_ids": token_ids, "prompt_token_ids": prompt}
        return {"token_ids": token_ids}

    def _ending(self, journal: ChoiceJournal, *, by_call: bool) -> dict[str, Any]:
        ending: dict[str, Any] = {
            "finish_reason": "tool_calls" if by_call else journal.finish_reason,
            "stop_reason": journal.stop_reason,
        }
        return ending | self._trajectory(journal)

    def _trajectory(self, journal: ChoiceJournal) -> dict[str, Any]:
        if not self._ask.return_trajectory:
            return {}
        return {
            "trajectory": {
                "prompt_token_ids": self._request.prompt_token_ids,
                "token_ids": journal.token_ids,
                "logprobs": journal.logprobs,
                "spans": journal.spans,
            }
        }

    def _logprobs(self, index: int, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not self._ask.logprobs or not entries or self._hides_tokens:
            return None
        if self._ask.endpoint == "chat":
            # Generate always lists the sampled token among the top ones; chat does so if asked.
            hidden: dict[str, Any] = {} if self._ask.top_logprobs else {"top_logprobs": []}
            return {"content": [{**entry, **hidden} for entry in entries] if hidden else entries}
        start = self._offsets.get(index, 0)
        columns = _completion_logprobs(entries, start, self._ask.top_logprobs)
        self._offsets[index] = columns["text_offset"][-1] + len(columns["tokens"][-1])
        return columns


def _completion_logprobs(entries: list[dict[str, Any]], start: int, top: int) -> dict[str, Any]:
    """The columns that completions use, from chat-shaped entries."""
    tokens = [entry["token"] for entry in entries]
    offsets = [start]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "text_offset": offsets,
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in _beside_sampled(entry, top)}
            for entry in entries
        ],
    }


def _beside_sampled(entry: dict[str, Any], top: int) -> list[dict[str, Any]]:
    """The sampled token, then the `top` best ones that are not it."""
    sampled, *others = entry["top_logprobs"]
    better = sum(other["logprob"] > sampled["logprob"] for other in others)
    return [sampled, *others[: max(0, top - 1) if better < top else top]]
