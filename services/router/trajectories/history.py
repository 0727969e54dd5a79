"""The messages of a call, as digests: whether it goes on from an earlier answer.

Clients pass an answer back in more than one way: some leave its thoughts out, some write them into
its text, some write the arguments of a tool call anew. What is compared here does not change by
that.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_END_OF_THOUGHTS = "</think>"
_BILLING = "x-anthropic-billing-header"
"""Begins a line of Claude Code's system messages that is another one in every call. Clients of
gateways send it with chats, and vLLM leaves it out of prompts."""
_SETTINGS = (
    "model",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "thinking",
    "output_config",
    "instructions",
    "reasoning",
)
"""Fields, besides messages, of a chat, of Messages or of Responses that may shape a prompt."""
_NO_TOOLS = "none", {"type": "none"}
_OF_AN_ANSWER = "thinking", "redacted_thinking", "tool_use"
"""Parts of Anthropic's messages that are no text; `_thoughts` and `_calls` read them."""


@dataclass(frozen=True, slots=True)
class HistoryMark:
    """The messages of one call: how many, their digest, and that of what else shapes a prompt."""

    length: int
    digest: bytes
    settings: bytes = b""


@dataclass(frozen=True, slots=True)
class AnswerMark:
    """An answer as its client may pass it back: digests of what it says, and of its thoughts."""

    said: bytes
    thoughts: bytes | None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "AnswerMark":
        """Of the message that the client was shown."""
        thoughts = _thoughts(message)
        said = _digest(_said({**message, "role": "assistant"}))
        return cls(said, _digest(thoughts) if thoughts else None)

    def is_passed_back_as(self, message: Any) -> bool:
        """Whether the message is this answer; its thoughts may be left out of it."""
        if not isinstance(message, dict) or _digest(_said(message)) != self.said:
            return False
        thoughts = _thoughts(message)
        return not thoughts or _digest(thoughts) == self.thoughts


class History:
    """The messages of a call as digests; empty for a completion, whose prompt has none.

    Token ids alone decide what a trajectory is. This tells why the ids of a conversation that goes
    on do not go on, and what a new prompt may begin with.

    Args:
        messages: as the client sent them, or as its items make them.
        settings: digest of what else shapes the prompt.
        ends: by message, how many items there are up to its end; None: each message is one.

    Attributes:
        messages: see above.
        settings: see above.
    """

    def __init__(
        self, messages: Sequence[Any], settings: bytes = b"", ends: Sequence[int] | None = None
    ) -> None:
        self.messages, self.settings = messages, settings
        self._ends = range(1, len(messages) + 1) if ends is None else ends
        running = hashlib.blake2b(digest_size=16)
        self._digests = [running.digest()]
        for message in messages:
            running.update(repr(_said(message)).encode(errors="replace"))
            self._digests.append(running.digest())

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "History":
        """The messages in a request's body, and its settings."""
        messages, ends = body.get("messages"), None
        if messages is None and isinstance(body.get("input"), str | list):
            messages, ends = _messages_of(body["input"])
        given = {name: body[name] for name in _SETTINGS if body.get(name)}
        system = _said({"role": "system", "content": body.get("system")})
        settings = _digest([given, system, body.get("tool_choice") in _NO_TOOLS])
        return cls(messages if isinstance(messages, list) else [], settings, ends)

    @property
    def mark(self) -> HistoryMark:
        """What is kept of it."""
        return HistoryMark(len(self.messages), self._digests[-1], self.settings)

    def through(self, message: int) -> int:
        """How many messages or items of the request there are up to the end of a message."""
        return self._ends[message]

    def repeats(self, mark: HistoryMark, answer: AnswerMark | None) -> bool:
        """Whether it is `mark`, then `answer` as the client was shown it, then perhaps more."""
        at = mark.length
        if answer is None or not self._begins_with(mark):
            return False
        return answer.is_passed_back_as(self.messages[at])

    def goes_on_from(self, mark: HistoryMark, answer: str) -> bool:
        """Whether it is `mark`, then what the text `answer` says, then perhaps more.

        Unlike `repeats`, it takes an answer for the same if a client left out a part of it, or
        changed its thoughts.
        """
        if not self._begins_with(mark):
            return False
        message, answer = self.messages[mark.length], answer.strip()
        calls, text = _calls(message), _text(message).strip()
        if _role(message) != "assistant" or not all(str(name) in answer for name, _ in calls):
            return False
        if text == answer or (calls and not text):
            return True
        # Thoughts are left out before the text, tool calls after it.
        text = _spoken(text) or text
        return bool(text) and (answer.endswith(text) or answer.startswith(text))

    def _begins_with(self, mark: HistoryMark) -> bool:
        at = mark.length
        return 0 < at < len(self.messages) and self._digests[at] == mark.digest


def _messages_of(given: str | list[Any]) -> tuple[list[Any], list[int]]:
    """The messages that the items of a Responses request make, and where each ends.

    The items of one answer, which are its thoughts, texts and calls, make one message.
    """
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Any] = []
    ends: list[int] = []
    for number, item in enumerate(items, start=1):
        part = _of_answer(item)
        if part is None or not messages or _role(messages[-1]) != "assistant":
            messages.append(part or item)
            ends.append(number)
        else:
            known = messages[-1]
            messages[-1] = {
                "role": "assistant",
                "content": known["content"] + part["content"],
                "reasoning": known["reasoning"] + part["reasoning"],
                "tool_calls": known["tool_calls"] + part["tool_calls"],
            }
            ends[-1] = number
    return messages, ends


def _of_answer(item: Any) -> dict[str, Any] | None:
    """What an item adds to the message of an answer; None: it is another message."""
    part: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    if not isinstance(item, dict):
        return None
    if item.get("type") == "reasoning":
        return part | {"reasoning": _text(item)}
    if item.get("type") == "function_call":
        return part | {"tool_calls": [{"function": item}]}
    return part | {"content": _text(item)} if _role(item) == "assistant" else None


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(repr(value).encode(errors="replace"), digest_size=16).digest()


def _said(message: Any) -> tuple[Any, ...]:
    """What a message says, without thoughts, and without what frameworks add to it or change."""
    if not isinstance(message, dict):
        return "", repr(message)
    role, text = _role(message), _text(message)
    if role == "assistant":
        text = _spoken(text)
    elif role == "system":
        texts = _texts(message)
        text = "".join(one.partition("\n")[2] if one.startswith(_BILLING) else one for one in texts)
    others = [_lasting(one) for one in _parts(message) if not isinstance(_text_of(one), str)]
    names = [message.get(name) for name in ("name", "tool_call_id", "call_id", "output")]
    return role, text, [one for one in others if one], _calls(message), names


def _thoughts(message: Mapping[str, Any]) -> str:
    """In a field of their own, or in the text."""
    for name in ("reasoning", "reasoning_content"):
        if isinstance(given := message.get(name), str) and given.strip():
            return given.strip()
    if parts := [str(one.get("thinking")) for one in _of_type(message, "thinking")]:
        return "".join(parts).strip()
    before = _text(message).rpartition(_END_OF_THOUGHTS)[0]
    return before.strip().removeprefix("<think>").strip()


def _spoken(text: str) -> str:
    """What follows the thoughts."""
    return text.rpartition(_END_OF_THOUGHTS)[2].strip()


def _role(message: Any) -> str:
    return str(message.get("role")) if isinstance(message, dict) else ""


def _text(message: Any) -> str:
    return "".join(_texts(message))


def _texts(message: Any) -> list[str]:
    content = message.get("content") if isinstance(message, dict) else repr(message)
    if isinstance(content, list):
        return [text for one in content if isinstance(text := _text_of(one), str)]
    return [str(content or "")]


def _parts(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _of_type(message: Any, kind: str) -> list[dict[str, Any]]:
    return [one for one in _parts(message) if isinstance(one, dict) and one.get("type") == kind]


def _lasting(part: Any) -> Any:
    """What a part that is no text adds to a prompt; clients move marks for caches along."""
    if not isinstance(part, dict):
        return part
    if part.get("type") in _OF_AN_ANSWER:
        return None
    return {name: value for name, value in part.items() if name != "cache_control"}


def _text_of(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) else part


def _calls(message: Any) -> list[tuple[Any, str]]:
    """Name and arguments of each called tool; arguments that are JSON in one way of writing it."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    blocks = [
        (one.get("name"), _written(one.get("input"))) for one in _of_type(message, "tool_use")
    ]
    return [_call(one) for one in calls] + blocks if isinstance(calls, list) else blocks


def _call(call: Any) -> tuple[Any, str]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return None, repr(call)  # no call that a model could have made
    return function.get("name"), _written(function.get("arguments"))


def _written(arguments: Any) -> str:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return str(arguments)
    return json.dumps(value or {}, sort_keys=True)
