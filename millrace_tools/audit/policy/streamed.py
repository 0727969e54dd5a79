"""Whole answers as the streams of their APIs, by the events that the router writes."""

import json
from collections.abc import Iterator
from typing import Any

from millrace_tools.audit.policy.wire_formats import CHAT, COMPLETIONS, MESSAGES, RESPONSES, words
from services.router.doors.blocks import Block
from services.router.doors.events import event
from services.router.doors.message_events import first_event, last_events, step_events
from services.router.doors.response_items import ItemEvents, Tools

STREAMED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
"""Paths whose answers can be asked for as a stream."""


def stream_of(path: str, answer: dict[str, Any]) -> bytes:
    """A whole answer of one of these paths as a stream: each of its parts at once."""
    if path == MESSAGES:
        return b"".join(_message(answer))
    if path == RESPONSES:
        numbered = enumerate(_response(answer))
        return b"".join(event({**one, "sequence_number": at}, one["type"]) for at, one in numbered)
    return event(chunk_of(answer)) + b"data: [DONE]\n\n"


def chunk_of(answer: dict[str, Any]) -> dict[str, Any]:
    """A whole chat or completion as the only chunk of a stream."""
    if answer.get("object") == "text_completion":
        return answer
    choices = [
        {name: one for name, one in choice.items() if name != "message"}
        | {"delta": choice["message"] | {"tool_calls": list(_numbered(choice["message"]))}}
        for choice in answer["choices"]
    ]
    return answer | {"object": "chat.completion.chunk", "choices": choices}


def _message(answer: dict[str, Any]) -> Iterator[bytes]:
    about = {name: answer.get(name) for name in ("id", "type", "role", "model")}
    usage = answer.get("usage") or {}
    yield first_event(about, {**usage, "output_tokens": 0})
    for index, part in enumerate(answer.get("content") or ()):
        if (block := _block_of_part(index, part)) is not None:
            yield from map(step_events, block.steps())
            continue
        begun = {"type": "content_block_start", "index": index, "content_block": part}
        yield event(begun, begun["type"])
        ended = {"type": "content_block_stop", "index": index}
        yield event(ended, "content_block_stop")
    stop = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
    yield last_events(stop, usage)


def _block_of_part(index: int, part: dict[str, Any]) -> Block | None:
    kind = part.get("type")
    if kind == "tool_use":
        arguments = json.dumps(part.get("input") or {})
        return Block("tool", index, call=part["id"], name=part["name"], text=arguments)
    if kind == "thinking":
        return Block("reasoning", index, text=part["thinking"])
    return Block("text", index, text=part["text"]) if kind == "text" else None


def _response(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**answer, "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    tools = Tools.of(answer.get("tools"))
    items = ItemEvents(tools)
    for index, item in enumerate(answer.get("output") or ()):
        if (block := _block_of_item(index, item, tools)) is not None:
            for step in block.steps():
                yield from items.of(step)
            continue
        items.done.append(item)
        for what in ("added", "done"):
            yield {"type": f"response.output_item.{what}", "output_index": index, "item": item}
    response = {**answer, "output": items.done}  # the events have given them ids
    yield {"type": f"response.{answer['status']}", "response": response}


def _block_of_item(index: int, item: dict[str, Any], tools: Tools) -> Block | None:
    kind = item.get("type")
    if kind == "message":
        return Block("text", index, text=words(item.get("content") or ()))
    if kind == "reasoning":
        return Block("reasoning", index, text=words(item.get("content") or item["summary"]))
    if kind == "function_call":
        names = {called: seen for seen, called in tools.spaces.items()}
        name = names.get((item.get("namespace", ""), item["name"]), item["name"])
        return Block("tool", index, call=item["call_id"], name=name, text=item["arguments"])
    if kind == "custom_tool_call":
        text = json.dumps({"input": item["input"]})
        return Block("tool", index, call=item["call_id"], name=item["name"], text=text)
    return None


def _numbered(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(message.get("tool_calls") or ()):
        yield {"index": number} | call
