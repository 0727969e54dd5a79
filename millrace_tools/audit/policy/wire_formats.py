"""What agents ask and are answered by the APIs that an audit serves: whole answers, in words."""

import time
from typing import Any

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "chat/completions",
    "completions",
    "responses",
    "messages",
)
"""Paths below `/v1`."""


def asked_in(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation of a request, as chat messages."""
    if path == COMPLETIONS:
        return [{"role": "user", "content": str(body.get("prompt", ""))}]
    if path == RESPONSES:
        given, system = body.get("input", ""), body.get("instructions")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    elif path == MESSAGES:
        items, system = body.get("messages") or [], body.get("system")
    else:
        return body.get("messages") or []
    first = [{"role": "system", "content": words(system)}] if system else []
    return first + [one | {"content": words(one.get("content") or "")} for one in items]


def said_in(answer: dict[str, Any]) -> str:
    """The text of a whole answer of any of the paths; empty if it is none."""
    if choices := answer.get("choices"):
        message = choices[0].get("message") or {"content": choices[0].get("text")}
        return str(message.get("content") or "")
    parts = answer.get("content") or [
        part for item in answer.get("output") or () for part in item.get("content") or ()
    ]
    return words(parts)


def shown_in(answer: dict[str, Any]) -> str:
    """The text of a whole answer for people; its calls of tools if it has no text."""
    message = (answer.get("choices") or [{}])[0].get("message") or {}
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    told = [f"{one.get('name')} {one.get('arguments')}" for one in calls]
    return said_in(answer) or "\n".join(told)


def written(path: str, said: str, model: str) -> dict[str, Any]:
    """A text as a whole answer of this path."""
    about = {"id": "audit", "model": model}
    if path == MESSAGES:
        usage = {"input_tokens": 1, "output_tokens": 1}
        end = {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
        content = [{"type": "text", "text": said}]
        return about | {"type": "message", "role": "assistant", "content": content} | end
    if path == RESPONSES:
        part = {"type": "output_text", "text": said, "annotations": []}
        item = {"id": "msg_audit", "type": "message", "role": "assistant", "content": [part]}
        rest = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}
        made = {"object": "response", "created_at": int(time.time()), "status": "completed"}
        return about | made | rest | {"output": [item | {"status": "completed"}]}
    said_as = {"text": said} if path == COMPLETIONS else {"message": _assistant(said)}
    kind = "text_completion" if path == COMPLETIONS else "chat.completion"
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **said_as}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    made = {"object": kind, "created": int(time.time()), "usage": usage}
    return about | made | {"choices": [choice]}


def with_aside(body: dict[str, Any], aside: str | None) -> dict[str, Any]:
    """A request with further words at the end of the last ones of its user."""
    if aside is None:
        return body
    for field in ("prompt", "input"):
        if isinstance(body.get(field), str):
            return body | {field: f"{body[field]}\n\n{aside}"}
    field = "input" if "input" in body else "messages"
    messages = list(body.get(field) or ())
    for place in range(len(messages) - 1, -1, -1):
        content = messages[place].get("content")
        if messages[place].get("role") == "user" and isinstance(content, str):
            messages[place] = messages[place] | {"content": f"{content}\n\n{aside}"}
            return body | {field: messages}
    return body | {field: [*messages, {"role": "user", "content": aside}]}


def _assistant(said: str) -> dict[str, Any]:
    return {"role": "assistant", "content": said}


def words(content: Any) -> str:
    """The text of content that may be a text, or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in content)
