"""Answers in OpenAI's JSON shape, from journals and pieces."""

from typing import Any

from services.router.client_request import ClientRequest
from services.router.journal import ChoiceJournal
from services.router.open_request import OpenRequest
from services.router.piece import Piece

_OBJECTS = {
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
    ("completions", False): "text_completion",
    ("completions", True): "text_completion",
}


class AnswerWriter:
    """Writes one request's answer, whole or as stream events."""

    def __init__(self, request: OpenRequest) -> None:
        self._request, self._ask = request, request.ask
        self._begun: set[int] = set()
        self._offsets: dict[int, int] = {}

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [self._whole_choice(journal) for journal in self._request.journals]
        return {**self._frame(choices), "usage": self._usage()}

    def event(self, piece: Piece) -> dict[str, Any] | None:
        """The stream event for a piece, None when there is nothing to tell."""
        if self._ask.stream_by == "choice":
            return self._frame([self._choice_event(piece.journal)]) if piece.finished else None
        entries = piece.entries if self._ask.logprobs else []
        first = piece.journal.index not in self._begun
        if not (piece.text or entries or piece.finished or first):
            return None
        self._begun.add(piece.journal.index)
        return self._frame([self._token_event(piece, entries, first)])

    def usage_event(self) -> dict[str, Any]:
        """The last event of a stream whose client asked for usage."""
        return {**self._frame([]), "usage": self._usage()}

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        ask = self._ask
        return {
            "id": ask.answer_id,
            "object": _OBJECTS[ask.endpoint, ask.stream],
            "created": ask.created,
            "model": self._request.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        prompt = len(self._request.prompt_token_ids)
        made = sum(len(journal.token_ids) for journal in self._request.journals)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
        }

    def _whole_choice(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice = {"index": journal.index, **self._content(journal.text)}
        choice["logprobs"] = self._logprobs(journal.index, journal.entries)
        return choice | self._ending(journal)

    def _choice_event(self, journal: ChoiceJournal) -> dict[str, Any]:
        choice = self._whole_choice(journal)
        if self._ask.endpoint == "chat":
            choice["delta"] = choice["message"]
        return choice

    def _token_event(
        self, piece: Piece, entries: list[dict[str, Any]], first: bool
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": piece.journal.index}
        if self._ask.endpoint == "completions":
            choice["text"] = piece.text
        elif first:
            choice["delta"] = {"role": "assistant", "content": piece.text}
        else:
            choice["delta"] = {"content": piece.text}
        choice["logprobs"] = self._logprobs(piece.journal.index, entries)
        if piece.finished:
            return choice | self._ending(piece.journal)
        choice["finish_reason"] = None
        return choice

    def _content(self, text: str) -> dict[str, Any]:
        if self._ask.endpoint == "completions":
            return {"text": text}
        return {"message": {"role": "assistant", "content": text}}

    def _ending(self, journal: ChoiceJournal) -> dict[str, Any]:
        ending: dict[str, Any] = {
            "finish_reason": journal.finish_reason,
            "stop_reason": journal.stop_reason,
        }
        if self._ask.return_trajectory:
            ending["trajectory"] = {
                "prompt_token_ids": self._request.prompt_token_ids,
                "token_ids": journal.token_ids,
                "logprobs": journal.logprobs,
                "spans": journal.spans,
            }
        return ending

    def _logprobs(self, index: int, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not self._ask.logprobs or not entries:
            return None
        if self._ask.endpoint == "chat":
            return {"content": [_with_top(entry, self._ask) for entry in entries]}
        start = self._offsets.get(index, 0)
        columns = _completion_logprobs(entries, start, self._ask.top_logprobs)
        self._offsets[index] = columns["text_offset"][-1] + len(columns["tokens"][-1])
        return columns


def _with_top(entry: dict[str, Any], ask: ClientRequest) -> dict[str, Any]:
    """Generate always lists the sampled token among the top ones; chat does so if asked."""
    return entry if ask.top_logprobs else {**entry, "top_logprobs": []}


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
            {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
            for entry in entries
        ],
    }
