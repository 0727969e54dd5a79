"""The output items of a response, and the events that stream them."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.router.doors.blocks import Block, Step

_NAMESPACE = "__"
"""vLLM's mark between a namespace and the name of a tool in it."""


@dataclass(frozen=True)
class Tools:
    """The tools of a request whose calls have a form of their own.

    Attributes:
        custom: names of tools that take text in place of arguments; vLLM shows the model a
            function with the argument `input`.
        spaces: namespace and name in it, by the name that the model sees.
    """

    custom: frozenset[str]
    spaces: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, tools: Any) -> "Tools":
        """Those of a request's body, whatever it holds."""
        given = _named(tools)
        spaces = {
            f"{tool['name']}{_NAMESPACE}{one['name']}": (tool["name"], one["name"])
            for tool in given
            if tool.get("type") == "namespace"
            for one in _named(tool.get("tools"))
        }
        custom = (tool["name"] for tool in given if tool.get("type") == "custom")
        return cls(frozenset(custom), spaces)


def _named(tools: Any) -> list[dict[str, Any]]:
    """Those with a name, of a list that no one has checked."""
    given = tools if isinstance(tools, list) else []
    return [one for one in given if isinstance(one, dict) and isinstance(one.get("name"), str)]


def item_of(block: Block, tools: Tools, *, name: str = "") -> dict[str, Any]:
    """A whole block as an item; `name` is its id if it has one already."""
    if block.kind == "text":
        return _message(name or _id("msg"), "completed", [_text_part(block)])
    if block.kind == "reasoning":
        part = {"type": "reasoning_text", "text": block.text}
        return {
            "type": "reasoning", "id": name or _id("rs"), "summary": [], "content": [part],
            "encrypted_content": None, "status": "completed",
        }  # fmt: skip
    return _call(block, tools, name or _id(_call_prefix(block, tools)), whole=True)


class ItemEvents:
    """Turns the steps of a message into the events of its items.

    Attributes:
        done: the items that are whole.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools, self._id = tools, ""
        self.done: list[dict[str, Any]] = []

    def of(self, step: Step) -> Iterator[dict[str, Any]]:
        """The events of a step, without their numbers."""
        block = step.block
        if step.what == "begin":
            yield from self._begin(block)
        elif step.what == "more":
            yield from self._more(step)
        else:
            yield from self._end(block)

    def _begin(self, block: Block) -> Iterator[dict[str, Any]]:
        if block.kind == "tool":
            self._id = _id(_call_prefix(block, self._tools))
            item = _call(block, self._tools, self._id, whole=False)
            yield self._item("added", block, item)
            return
        if block.kind == "text":
            self._id = _id("msg")
            yield self._item("added", block, _message(self._id, "in_progress", []))
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            self._id = _id("rs")
            item = {"type": "reasoning", "id": self._id, "summary": [], "status": "in_progress"}
            yield self._item("added", block, item)
            part = {"type": "reasoning_text", "text": ""}
        yield self._at(block, "response.content_part.added", part=part)

    def _more(self, step: Step) -> Iterator[dict[str, Any]]:
        block = step.block
        if block.kind == "text":
            logprobs = [_logprob(entry) for entry in step.entries]
            kind = "response.output_text.delta"
            yield self._at(block, kind, delta=step.text, logprobs=logprobs)
        elif block.kind == "reasoning":
            yield self._at(block, "response.reasoning_text.delta", delta=step.text)
        elif block.name not in self._tools.custom:
            yield self._of_call(block, "response.function_call_arguments.delta", delta=step.text)

    def _end(self, block: Block) -> Iterator[dict[str, Any]]:
        item = item_of(block, self._tools, name=self._id)
        if block.kind == "text":
            yield self._at(block, "response.output_text.done", text=block.text, logprobs=[])
            yield self._at(block, "response.content_part.done", part=item["content"][0])
        elif block.kind == "reasoning":
            yield self._at(block, "response.reasoning_text.done", text=block.text)
            yield self._at(block, "response.content_part.done", part=item["content"][0])
        elif block.name in self._tools.custom:
            # Its text is inside of JSON, of which a part may not be readable.
            text = item["input"]
            yield self._of_call(block, "response.custom_tool_call_input.delta", delta=text)
            yield self._of_call(block, "response.custom_tool_call_input.done", input=text)
        else:
            kind = "response.function_call_arguments.done"
            yield self._of_call(block, kind, arguments=block.text, name=item["name"])
        self.done.append(item)
        yield self._item("done", block, item)

    def _item(self, what: str, block: Block, item: dict[str, Any]) -> dict[str, Any]:
        kind = f"response.output_item.{what}"
        return {"type": kind, "output_index": block.index, "item": item}

    def _at(self, block: Block, kind: str, **fields: Any) -> dict[str, Any]:
        return self._of_call(block, kind, content_index=0, **fields)

    def _of_call(self, block: Block, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self._id, "output_index": block.index, **fields}


def _message(name: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "message", "id": name, "role": "assistant", "status": status, "content": content,
    }  # fmt: skip


def _text_part(block: Block) -> dict[str, Any]:
    logprobs = [_logprob(entry) for entry in block.entries] or None
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}


def _call_prefix(block: Block, tools: Tools) -> str:
    return "ctc" if block.name in tools.custom else "fc"


def _call(block: Block, tools: Tools, name: str, *, whole: bool) -> dict[str, Any]:
    known = {"id": name, "call_id": block.call}
    if block.name in tools.custom:
        text = _custom_input(block.text) if whole else ""
        return {"type": "custom_tool_call", **known, "name": block.name, "input": text}
    space, called = tools.spaces.get(block.name, (None, block.name))
    return {
        "type": "function_call",
        **known,
        "name": called,
        **({"namespace": space} if space is not None else {}),
        "arguments": block.text if whole else "",
        "status": "completed" if whole else "in_progress",
    }


def _custom_input(arguments: str) -> str:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _logprob(entry: dict[str, Any]) -> dict[str, Any]:
    names = "token", "logprob", "bytes"
    others = entry.get("top_logprobs") or ()
    top = [{name: one.get(name) for name in names} for one in others]
    return {**{name: entry.get(name) for name in names}, "top_logprobs": top}


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
