"""The blocks of a message: thoughts, text and tool calls, one after the other.

The Messages and Responses APIs stream a message so; a chat streams it as deltas.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["reasoning", "text", "tool"]


@dataclass
class Block:
    """One block as far as it is known.

    Attributes:
        kind: what it is.
        index: its place in the message, from 0.
        call: id of the tool call, empty for others.
        name: of the tool.
        text: all of it so far: a thought, text, or arguments in JSON.
        entries: logprob entries of a text, in OpenAI's chat shape.
    """

    kind: Kind
    index: int
    call: str = ""
    name: str = ""
    text: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of a tool call; under `unparsed` what is no JSON object."""
        try:
            value = json.loads(self.text or "{}")
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {"unparsed": self.text}

    def steps(self) -> Iterator["Step"]:
        """Those of a block that is whole already."""
        yield Step("begin", self)
        if self.text:
            yield Step("more", self, self.text, self.entries)
        yield Step("end", self)


@dataclass(frozen=True)
class Step:
    """A block begins, goes on with `text`, or ends."""

    what: Literal["begin", "more", "end"]
    block: Block
    text: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)


class Blocks:
    """Divides the deltas of one message.

    Attributes:
        all: the blocks so far; all but the last have ended.
    """

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._called: int | None = None  # index of the open tool call
        self._after: list[tuple[str, list[dict[str, Any]]]] = []  # text that waits for its end

    def take(self, delta: dict[str, Any], entries: list[dict[str, Any]]) -> Iterator[Step]:
        """The steps of one delta; `entries` are the logprobs of its text."""
        if reasoning := delta.get("reasoning"):
            yield from self._more("reasoning", reasoning)
        if content := delta.get("content"):
            if self._called is not None:
                # Arguments may still come: a block that has ended could not take them.
                self._after.append((content, entries))
            else:
                yield from self._more("text", content, entries)
        for call in delta.get("tool_calls") or ():
            yield from self._tool(call)

    def end(self) -> Iterator[Step]:
        """The steps that end the message."""
        yield from self._end()
        yield from self._waited()
        yield from self._end()

    @classmethod
    def of(cls, message: dict[str, Any], entries: list[dict[str, Any]]) -> list[Block]:
        """The blocks of a whole message."""
        blocks = cls()
        calls = [{**call, "index": at} for at, call in enumerate(message.get("tool_calls") or ())]
        for _ in (*blocks.take({**message, "tool_calls": calls}, entries), *blocks.end()):
            pass
        return blocks.all

    def _tool(self, call: dict[str, Any]) -> Iterator[Step]:
        function, index = call.get("function") or {}, call.get("index", 0)
        if index != self._called and function.get("name"):
            yield from self._end()
            yield from self._waited()
            yield from self._end()
            yield self._begin("tool", call=call.get("id") or "", name=function["name"])
            self._called = index
        arguments = function.get("arguments")
        if arguments and self._open is not None and index == self._called:
            self._open.text += arguments
            yield Step("more", self._open, arguments)

    def _more(
        self, kind: Kind, text: str, entries: list[dict[str, Any]] | None = None
    ) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._end()
            yield self._begin(kind)
        assert self._open is not None
        self._open.text += text
        self._open.entries += entries or []
        yield Step("more", self._open, text, entries or [])

    def _begin(self, kind: Kind, call: str = "", name: str = "") -> Step:
        self._open = Block(kind, len(self.all), call, name)
        self.all.append(self._open)
        return Step("begin", self._open)

    def _waited(self) -> Iterator[Step]:
        waited, self._after = self._after, []
        for text, entries in waited:
            yield from self._more("text", text, entries)

    def _end(self) -> Iterator[Step]:
        ended, self._open, self._called = self._open, None, None
        if ended is not None:
            yield Step("end", ended)
