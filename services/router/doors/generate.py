"""vLLM's token-in, token-out API: `/inference/v1/generate`."""

from typing import Any

from services.router.answering.journal import ChoiceJournal, Piece
from services.router.answering.open_request import OpenRequest
from services.router.doors.door import AnswerWriter
from services.router.doors.events import event
from services.router.doors.openai_answers import DONE, OpenAIDoor, trajectory_of
from services.router.errors import RequestFailed


class GenerateDoor(OpenAIDoor):
    """See `services.router.doors.door.Door`; errors are OpenAI's."""

    def writer(self, request: OpenRequest) -> AnswerWriter:
        """See `Door`."""
        return GeneratedAnswers(request)


class GeneratedAnswers:
    """See `AnswerWriter`.

    Entries of logprobs name their token twice: by `token_id`, as vLLM does, and as
    `token_id:N` under `token`, as its other routes do when asked for token ids.
    """

    def __init__(self, request: OpenRequest) -> None:
        self._request, self._ask = request, request.ask
        self._mode = request.ask.body.get("output_mode") or "tokens"
        self._begun = False

    def whole(self) -> dict[str, Any]:
        """See `AnswerWriter`."""
        choices = [self._choice(journal) for journal in self._request.journals]
        return {
            **self._frame(choices),
            "created": self._ask.created,
            "model": self._request.model,
            "usage": self._usage(),
            "prompt_logprobs": None,
            **({} if not self._ask.return_token_ids else self._prompt()),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }

    def events(self, piece: Piece) -> bytes:
        """See `AnswerWriter`."""
        text = piece.text if self._mode == "text" else ""
        if not (piece.token_ids or text or piece.finished):
            return b""
        journal = piece.journal
        choice = self._part(journal, piece.token_ids, piece.entries, piece.text)
        if not piece.finished:
            choice |= {"finish_reason": None, "stop_reason": None}
        told = self._frame([choice])
        if not self._begun and self._ask.return_token_ids:
            told |= self._prompt()
        self._begun = True
        return event(told | ({"usage": self._usage()} if self._ask.continuous_usage else {}))

    def ending(self) -> bytes:
        """See `AnswerWriter`."""
        if not self._ask.include_usage:
            return DONE
        return event({**self._frame([]), "usage": self._usage()}) + DONE

    async def keep(self) -> None:
        """No request refers to an earlier one."""

    def tell_generated(self, failure: RequestFailed) -> None:
        """See `AnswerWriter`."""
        made = [self._choice(one) for one in self._request.journals if one.token_ids]
        if made and not self._ask.stream:
            failure.body["error"]["generated"] = {"choices": made, "usage": self._usage()}

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "request_id": self._ask.answer_id,
            "output_mode": self._mode,
            "choices": choices,
        }

    def _prompt(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._request.prompt_token_ids}

    def _choice(self, journal: ChoiceJournal) -> dict[str, Any]:
        return self._part(journal, journal.token_ids, journal.entries, journal.text)

    def _part(
        self,
        journal: ChoiceJournal,
        token_ids: list[int],
        entries: list[dict[str, Any]],
        text: str,
    ) -> dict[str, Any]:
        content = [_named(entry) for entry in entries]
        told = trajectory_of(self._request, journal) if journal.settled else {}
        return {
            "index": journal.index,
            "finish_reason": journal.finish_reason,
            "stop_reason": journal.stop_reason,
            "token_ids": token_ids,
            "weight_versions": [
                {"version": str(version), "start": start, "end": end}
                for version, start, end, _ in journal.spans
            ],
            "logprobs": {"content": content} if self._ask.logprobs and content else None,
            **({"text": text} if self._mode == "text" else {}),
            **told,
        }

    def _usage(self) -> dict[str, Any]:
        prompt = len(self._request.prompt_token_ids)
        made = sum(len(journal.token_ids) for journal in self._request.journals)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": self._request.prompt_details,
        }


def _named(entry: dict[str, Any]) -> dict[str, Any]:
    if "token_id" not in entry:
        return entry
    others = [_named(one) for one in entry.get("top_logprobs") or ()]
    return {**entry, "token": f"token_id:{entry['token_id']}", "top_logprobs": others}
