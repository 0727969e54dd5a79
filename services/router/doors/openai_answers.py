"""Chats and completions in OpenAI's JSON shape, as vLLM writes it."""

from typing import Any

from services.http.event_stream import END
from services.http.json_body import json_bytes
from services.router.answering.journal import ChoiceJournal, Piece
from services.router.answering.open_request import OpenRequest
from services.router.doors.door import AnswerWriter
from services.router.doors.events import event
from services.router.errors import RequestFailed
from services.router.request.client_request import ClientRequest

DONE = b"data: %b\n\n" % END
_CHAT_NULLS = ("service_tier", "system_fingerprint", "prompt_logprobs", "prompt_token_ids",
               "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics")  # fmt: skip
_COMPLETION_NULLS = ("service_tier", "system_fingerprint", "kv_transfer_params",
                     "ec_transfer_params", "metrics")  # fmt: skip
_CHOICE_NULLS = "token_ids", "routed_experts"
_TEXT_NULLS = "token_ids", "prompt_token_ids", "prompt_logprobs", "routed_experts"
_MESSAGE_NULLS = ("refusal", "annotations", "audio", "function_call", "reasoning")
_PROMPT_NULLS = "created_cache_tokens", "multimodal_tokens"
"""What whole answers have as null: clients read fields that vLLM always sends."""
_OPENING_NULLS = "prompt_token_ids", "prompt_text"
_DELTA_NULLS, _TEXT_DELTA_NULLS = ("token_ids",), ("token_ids", "prompt_token_ids", "stop_reason")
"""The same of the events of a stream."""


class OpenAIDoor:
    """See `services.router.doors.door.Door`."""

    async def opened(self, body: Any) -> Any:
        """A body refers to nothing."""
        return body

    def writer(self, request: OpenRequest) -> AnswerWriter:
        """See `Door`."""
        return OpenAIAnswers(request)

    def error(self, failure: RequestFailed) -> dict[str, Any]:
        """See `Door`."""
        return failure.body

    def error_events(self, failure: RequestFailed) -> bytes:
        """See `Door`."""
        return b"data: %b\n\n" % json_bytes(failure.body) + DONE

    def passed_on(self, event: str) -> bytes:
        """See `Door`."""
        return b"data: %b\n\n" % event.encode()

    def end_of_passed_on(self) -> bytes:
        """See `Door`."""
        return DONE


class OpenAIAnswers:
    """See `AnswerWriter`."""

    def __init__(self, request: OpenRequest) -> None:
        self._request = request
        self._begun: set[int] = set()
        self._called_tools: set[int] = set()
        self._offsets: dict[int, int] = {}

    @property
    def _ask(self) -> ClientRequest:
        return self._request.ask  # in a chat's words once it is rendered

    def whole(self) -> dict[str, Any]:
        """See `AnswerWriter`."""
        choices = [self._whole_choice(journal) for journal in self._request.journals]
        nulls = _CHAT_NULLS if self._ask.is_chat else _COMPLETION_NULLS
        frame = dict.fromkeys(nulls) | self._frame(choices)
        return {**frame, **self._chat_prompt(), "usage": self.usage()}

    def events(self, piece: Piece) -> bytes:
        """See `AnswerWriter`."""
        opening = self._opening(piece) if self._ask.stream_by == "token" else b""
        told = self.event(piece)
        return opening + (b"" if told is None else event(told))

    def event(self, piece: Piece) -> dict[str, Any] | None:
        """The stream event for a piece, None when there is nothing to tell."""
        if self._ask.stream_by == "choice":
            return self._frame([self._choice_event(piece.journal)]) if piece.finished else None
        tells = piece.text if piece.delta is None else piece.delta
        tokens = piece.token_ids and (self._ask.logprobs or self._ask.return_token_ids)
        first = not self._ask.is_chat and piece.journal.index not in self._begun
        if not (tells or (tokens and not self._hides_tokens) or piece.finished or first):
            return None
        told = self._frame([self._token_event(piece, first)])
        self._begun.add(piece.journal.index)
        return told | self._usage_so_far(piece.made, piece.journal)

    def _opening(self, piece: Piece) -> bytes:
        """The event that begins a choice of a chat: its role."""
        index = piece.journal.index
        if not self._ask.is_chat or index in self._begun:
            return b""
        self._begun.add(index)
        delta = {"role": self._ask.role, "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        opening = self._frame([choice]) | dict.fromkeys(_OPENING_NULLS) | self._chat_prompt()
        return event(opening | self._usage_so_far(0, piece.journal))

    def _usage_so_far(self, made: int, journal: ChoiceJournal) -> dict[str, Any]:
        if not self._ask.continuous_usage:
            return {}
        nulls = {"completion_tokens_details": None} if self._ask.is_chat else {}
        return {"usage": self._usage(made) | nulls | _completion_details([journal])}

    def ending(self) -> bytes:
        """See `AnswerWriter`."""
        if not self._ask.include_usage:
            return DONE
        details = self._request.prompt_details
        told = {"prompt_tokens_details": details} if details else {}
        told |= _completion_details(self._request.journals)
        # vLLM leaves nulls out of this event alone.
        return event({**self._frame([]), "usage": self._usage(self._made) | told}) + DONE

    async def keep(self) -> None:
        """No request refers to an earlier one."""

    def tell_generated(self, failure: RequestFailed) -> None:
        """See `AnswerWriter`."""
        ask, journals = self._ask, self._request.journals
        unsent = [journal for journal in journals if not (ask.stream and journal.settled)]
        choices = [self._generated(journal) for journal in unsent if journal.token_ids]
        if choices and not (ask.streams_tokens or self._hides_tokens):
            generated = {"choices": choices, "usage": self.usage()}
            failure.body["error"]["generated"] = generated

    def _generated(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice = {"index": journal.index, "text": journal.text}
        return (
            choice
            | self._token_ids(journal.token_ids, first=True)
            | trajectory_of(self._request, journal)
        )

    @property
    def _hides_tokens(self) -> bool:
        """Tokens would tell the reasoning that the client wants to be left out."""
        hidden = self._ask.body.get("include_reasoning") is False
        return hidden and self._request.parser is not None

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        ask = self._ask
        return {
            "id": ask.answer_id,
            "object": _object(ask),
            "created": ask.created,
            "model": self._request.model,
            "choices": choices,
        }

    def _chat_prompt(self) -> dict[str, Any]:
        """A chat's answer tells its prompt once, a completion's with every choice."""
        if self._ask.is_chat and self._ask.return_token_ids:
            return {"prompt_token_ids": self._request.prompt_token_ids}
        return {}

    def _usage(self, made: int) -> dict[str, Any]:
        prompt = len(self._request.prompt_token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens of the whole answer."""
        details = self._request.prompt_details
        usage = self._usage(self._made) | {
            "prompt_tokens_details": details and dict.fromkeys(_PROMPT_NULLS) | details,
            "completion_tokens_details": None,
        }
        return usage | _completion_details(self._request.journals)

    @property
    def _made(self) -> int:
        return sum(len(journal.token_ids) for journal in self._request.journals)

    def _whole_choice(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": journal.index}
        if not self._ask.stream:
            choice |= dict.fromkeys(_CHOICE_NULLS if self._ask.is_chat else _TEXT_NULLS)
        if not self._ask.is_chat:
            choice["text"] = journal.text
        else:
            message = journal.message or {"role": self._ask.role, "content": journal.text}
            choice["message"] = dict.fromkeys(_MESSAGE_NULLS) | message
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
        if self._ask.is_chat:
            choice["delta"] = choice["message"]
        return choice

    def _token_event(self, piece: Piece, first: bool) -> dict[str, Any]:
        index = piece.journal.index
        choice: dict[str, Any] = {"index": index}
        choice |= dict.fromkeys(_DELTA_NULLS if self._ask.is_chat else _TEXT_DELTA_NULLS)
        if not self._ask.is_chat:
            choice["text"] = piece.text
        else:
            choice["delta"] = {"content": piece.text} if piece.delta is None else piece.delta
            if choice["delta"].get("tool_calls"):
                self._called_tools.add(index)
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
        if not self._ask.is_chat and first:
            prompt = self._request.prompt_token_ids
            return {"token_ids": token_ids, "prompt_token_ids": prompt}
        return {"token_ids": token_ids}

    def _ending(self, journal: ChoiceJournal, *, by_call: bool) -> dict[str, Any]:
        ending: dict[str, Any] = {
            "finish_reason": "tool_calls" if by_call else journal.finish_reason,
            "stop_reason": journal.stop_reason,
        }
        return ending | trajectory_of(self._request, journal)

    def _logprobs(self, index: int, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not self._ask.logprobs or not entries or self._hides_tokens:
            return None
        if self._ask.is_chat:
            # Generate always lists the sampled token among the top ones; chat does so if asked.
            hidden: dict[str, Any] = {} if self._ask.top_logprobs else {"top_logprobs": []}
            return {"content": [{**entry, **hidden} for entry in entries] if hidden else entries}
        start = self._offsets.get(index, 0)
        columns = _completion_logprobs(entries, start, self._ask.top_logprobs)
        self._offsets[index] = columns["text_offset"][-1] + len(columns["tokens"][-1])
        return columns


def _completion_details(journals: list[ChoiceJournal]) -> dict[str, Any]:
    """How many tokens are reasoning, where a parser tells."""
    counts = [one.reasoning_tokens for one in journals if one.reasoning_tokens is not None]
    return {"completion_tokens_details": {"reasoning_tokens": sum(counts)}} if counts else {}


def trajectory_of(request: OpenRequest, journal: ChoiceJournal) -> dict[str, Any]:
    """The `trajectory` of a choice, if the client asked for it."""
    if not request.ask.return_trajectory:
        return {}
    return {
        "trajectory": {
            "prompt_token_ids": request.prompt_token_ids,
            "token_ids": journal.token_ids,
            "logprobs": journal.logprobs,
            "spans": journal.spans,
        }
    }


def _object(ask: ClientRequest) -> str:
    if not ask.is_chat:
        return "text_completion"
    return "chat.completion.chunk" if ask.stream else "chat.completion"


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
