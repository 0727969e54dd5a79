"""Reasoning and tool calls: the messages of a chat whose replica parses answers.

vLLM's `derender` turns tokens into messages and keeps nothing between two calls, so it does not
matter which replicas made the tokens, or whether some were lost in between: the parser's state
after a cut is what it would have been without one. Its price is that each streaming call parses
the whole answer again. So tokens that come while a call runs are parsed together in the next
one, and calls rest in between: a long answer comes in larger steps instead of taking the
replica's time from its engine. Requests without tools, at a replica without a reasoning
parser, never come here.
"""

import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from services.protocol.rollout_server import COUNTED, PARSE_ANSWER, REASONING_TOKENS
from services.router.answering.journal import ChoiceJournal, Piece
from services.router.answering.streams import batched
from services.router.errors import RequestFailed
from services.router.request.client_request import ClientRequest
from services.router.upstream.replicas import Replicas

_MARK = re.compile(r"\s*[<\[◁].+[>\]▷]\s*", re.DOTALL)
_REST = 4.0
_DERENDER = "/v1/chat/completions/derender"


class AnswerParser:
    """Parses the answer to one chat.

    Args:
        ask: what the client wants.
        request: as prepared.
        model: the model that answers.
        replicas: any of them can parse.
        known: tokens of the prompt that an earlier answer ends. Parsers look back for marks: those
            of earlier thoughts would tell them that this answer's have ended.
    """

    def __init__(
        self,
        ask: ClientRequest,
        request: dict[str, Any],
        *,
        model: str,
        replicas: Replicas,
        known: int = 0,
    ) -> None:
        self._ask, self._prompt, self._model = ask, request["token_ids"][known:], model
        self._replicas = replicas
        self._same = json.dumps(
            {
                "model": request.get("model"),
                "chat_request": ask.body,
                "prompt_token_ids": self._prompt,
            }
        )
        self._counts = request.get("reasoning_parser_kwargs") is not None and _tells_usage(ask)
        self._states: dict[int, dict[str, Any]] = {}
        self._busy_s = 0.0

    async def message(self, journal: ChoiceJournal) -> dict[str, Any]:
        """The message of a settled choice.

        Raises:
            RequestFailed: no replica could parse it.
        """
        if isinstance(journal.stop_reason, str):
            token_ids = await self._respelled(journal.text)
        else:
            token_ids = _spelled(journal.token_ids, journal)
        if not token_ids:
            return {"role": self._ask.role, "content": ""}
        answer = await self._derender(
            {
                "generate_response": {
                    "request_id": self._ask.answer_id,
                    "choices": [self._choice(journal, token_ids)],
                    "prompt_token_ids": self._prompt,
                }
            },
            journal,
            journal.token_ids if self._counts else None,
        )
        message: dict[str, Any] = answer["choices"][0]["message"]
        found = message.pop("tool_calls", None) or []
        calls = found if self._ask.offers_tools else []
        if self._single_call:
            calls = calls[:1]
        journal.hides_calls = len(calls) < len(found)
        message = {**message, "role": self._ask.role}
        return message | ({"tool_calls": calls} if calls else {})

    async def streamed(
        self, first: Piece, rest: AsyncGenerator[Piece, None]
    ) -> AsyncGenerator[Piece, None]:
        """The same pieces with what is new in the message instead of text.

        Raises:
            RequestFailed: no replica could parse them.
        """

        async def pieces() -> AsyncGenerator[Piece, None]:
            yield first
            async with aclosing(rest):
                async for piece in rest:
                    yield piece

        async with aclosing(batched(pieces(), self._pause_s)) as batches:
            async for batch in batches:
                self._busy_s = 0.0
                for piece in _steps(batch):
                    yield replace(piece, delta=await self._delta(piece))

    @property
    def _single_call(self) -> bool:
        return self._ask.body.get("parallel_tool_calls") is False

    def _pause_s(self) -> float:
        return self._busy_s * _REST

    async def _delta(self, piece: Piece) -> dict[str, Any]:
        journal = piece.journal
        token_ids = _spelled(piece.token_ids, journal) if piece.finished else piece.token_ids
        if not token_ids and not piece.finished:
            return {}
        began = time.monotonic()
        counts = self._counts and (piece.finished or self._ask.continuous_usage)
        answer = await self._derender(
            {
                "stream": True,
                "generate_chunk": {
                    "request_id": self._ask.answer_id,
                    "choices": [self._choice(journal, token_ids, finished=piece.finished)],
                },
                "stream_state": self._states.get(journal.index),
            },
            journal,
            journal.token_ids[: piece.made] if counts else None,
        )
        self._busy_s += time.monotonic() - began
        self._states[journal.index] = answer["stream_state"]
        delta = _without_nulls(answer["chunk"]["choices"][0]["delta"])
        journal.message = _joined(journal.message or {"role": self._ask.role}, delta)
        journal.hides_calls = self._single_call
        return {name: value for name, value in delta.items() if value and name != "role"}

    def _choice(
        self, journal: ChoiceJournal, token_ids: list[int], *, finished: bool = True
    ) -> dict[str, Any]:
        return {
            "index": 0,
            "token_ids": token_ids,
            "finish_reason": journal.finish_reason if finished else None,
            "stop_reason": journal.stop_reason if finished else None,
        }

    async def _respelled(self, text: str) -> list[int]:
        """Other tokens for a text whose own ones spell more: a stop string ended inside of one.

        Only to parse it; what is recorded of the choice are the tokens that were sampled.
        """
        if not text:
            return []
        body = {"prompt": text, "add_special_tokens": False, "model": self._model}
        token_ids: list[int] = (await self._call("/tokenize", body))["tokens"]
        made = {
            "request_id": self._ask.answer_id,
            "choices": [{"index": 0, "token_ids": token_ids}],
        }
        answer = await self._call(
            "/v1/completions/derender",
            {
                "generate_responses": [made],
                "prompt_token_ids": [self._prompt],
                "completion_request": {"prompt": "-", "skip_special_tokens": False},
            },
        )
        if answer["choices"][0]["text"] != text:
            message = "the text before a stop string has no tokens that spell it, to parse it by"
            raise RequestFailed(502, "text_mismatch", message)
        return token_ids

    async def _derender(
        self, body: dict[str, Any], journal: ChoiceJournal, counted: list[int] | None
    ) -> Any:
        """What derender says; the journal learns how many of the counted tokens are reasoning."""
        path = _DERENDER
        if counted is not None:
            path, body = PARSE_ANSWER, {**body, COUNTED: counted}
        # Prompt and request are most of it, and the same in every call: written out once.
        data = f"{self._same[:-1]}, {json.dumps(body)[1:]}".encode()
        answer = await self._call(path, data)
        if counted is not None:
            journal.reasoning_tokens = answer[REASONING_TOKENS]
        return answer

    async def _call(self, path: str, body: dict[str, Any] | bytes) -> Any:
        ask = self._replicas.ask
        return await ask(path, body, model=self._model, session=self._ask.session)


def _tells_usage(ask: ClientRequest) -> bool:
    """Whether the client is told how many tokens were reasoning; Messages have no such field."""
    if ask.endpoint == "messages":
        return False
    return ask.endpoint == "responses" or ask.include_usage or not ask.stream


def _without_nulls(value: Any) -> Any:
    """Clients add deltas up: what is null here would undo what an earlier delta said."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _joined(message: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """The message with what a delta adds to it, as clients add deltas up."""
    texts = ("content", "reasoning")
    added = {name: message.get(name, "") + delta[name] for name in texts if delta.get(name)}
    calls = list(message.get("tool_calls", ()))
    for part in delta.get("tool_calls") or ():
        calls += [{"function": {}}] * (part["index"] + 1 - len(calls))
        known, new = calls[part["index"]]["function"], part.get("function", {})
        arguments = known.get("arguments", "") + new.get("arguments", "")
        calls[part["index"]] = {"function": {**known, **new, "arguments": arguments}}
    return {**message, **added, "tool_calls": calls}


def _spelled(token_ids: list[int], journal: ChoiceJournal) -> list[int]:
    """The tokens that have text: the engine shows none for a token that ended the answer."""
    by_token = journal.finish_reason == "stop" and not isinstance(journal.stop_reason, str)
    return token_ids[:-1] if by_token else token_ids


def _steps(batch: list[Piece]) -> list[Piece]:
    """The batch in as few pieces as parsers allow: marks, and an answer's end, stay apart."""
    steps: dict[int, list[Piece]] = {}
    for piece in batch:
        known = steps.setdefault(piece.journal.index, [])
        for step in _by_token(piece):
            if known and not (step.finished or _is_mark(known[-1]) or _is_mark(step)):
                step = replace(
                    step,
                    token_ids=known[-1].token_ids + step.token_ids,
                    entries=known.pop().entries + step.entries,
                )
            known.append(step)
    return [step for known in steps.values() for step in known]


def _by_token(piece: Piece) -> list[Piece]:
    """One piece per token; the last one has the piece's end."""
    before = piece.made - len(piece.token_ids)
    alone = [
        replace(
            piece, text="", token_ids=[token], entries=[entry], finished=False, made=before + count
        )
        for count, (token, entry) in enumerate(
            zip(piece.token_ids, piece.entries, strict=True), start=1
        )
    ]
    last = alone.pop() if alone else piece
    return [*alone, replace(last, text=piece.text, finished=piece.finished)]


def _is_mark(piece: Piece) -> bool:
    return len(piece.entries) == 1 and _MARK.fullmatch(piece.entries[0]["token"]) is not None
