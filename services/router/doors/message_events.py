"""The events that stream a message of Anthropic's Messages API."""

import uuid
from typing import Any

from services.router.doors.blocks import Block, Step
from services.router.doors.events import event

_BEGINNINGS: dict[str, dict[str, Any]] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool": ("input_json_delta", "partial_json"),
}


def first_event(message: dict[str, Any], usage: dict[str, Any]) -> bytes:
    """The one that begins a message.

    Args:
        message: without its content.
        usage: so far.
    """
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return event({"type": "message_start", "message": begun}, "message_start")


def last_events(stop: dict[str, Any], usage: dict[str, Any], **more: Any) -> bytes:
    """Those that end a message; `stop` says why, in the fields that a message has for it."""
    delta = {"type": "message_delta", "delta": stop, "usage": usage, **more}
    return event(delta, "message_delta") + event({"type": "message_stop"}, "message_stop")


def step_events(step: Step) -> bytes:
    """Those of one step of a message."""
    block, told = step.block, b""
    if step.what == "begin":
        call = {"type": "tool_use", "id": block.call, "name": block.name, "input": {}}
        begun = _BEGINNINGS.get(block.kind, call)
        data = {"type": "content_block_start", "index": block.index, "content_block": begun}
        return event(data, "content_block_start")
    if step.what == "more":
        kind, name = _DELTAS[block.kind]
        return _delta(block, {"type": kind, name: step.text})
    if block.kind == "reasoning":
        told = _delta(block, {"type": "signature_delta", "signature": uuid.uuid4().hex})
    stopped = {"type": "content_block_stop", "index": block.index}
    return told + event(stopped, "content_block_stop")


def _delta(block: Block, delta: dict[str, Any]) -> bytes:
    data = {"type": "content_block_delta", "index": block.index, "delta": delta}
    return event(data, "content_block_delta")
