"""How a prompt begins: what tells requests that would share a KV cache from others.

Agents need not name anything. The prompt up to its first user message is the same for all
samples of a group; and a conversation that goes on repeats, before its new messages, all that
its last call has said. Keys are digests, so that the tables that hold them hold no text.
"""

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

_HEAD_CHARACTERS = 4096
_LOOK_BACK = 16
"""Messages that one turn may add, such as an answer and the results of many tools."""


@dataclass(frozen=True, kw_only=True)
class PromptPrefix:
    """Keys of a prompt.

    Attributes:
        group: its beginning; None: nothing to go by.
        whole: all of it; None while it is nothing but a beginning.
        earlier: beginnings longer than the group's that may have been a prompt themselves,
            longest first.
    """

    group: str | None = None
    whole: str | None = None
    earlier: tuple[str, ...] = ()

    @classmethod
    def of(cls, body: dict[str, Any]) -> "PromptPrefix":
        """Of a client's body, whatever it holds: the replica judges it, not this."""
        messages = body.get("messages")
        if isinstance(messages, list):
            return cls._of_messages(body.get("model"), messages)
        prompt = body.get("prompt")
        if not isinstance(prompt, str | list) or not prompt:
            return NO_PREFIX
        # Completions have no messages to go by: what begins alike for so long is a group.
        head = json.dumps([body.get("model"), prompt[:_HEAD_CHARACTERS]])
        return cls(group=_digest(head.encode()).hexdigest())

    @classmethod
    def _of_messages(cls, model: Any, messages: list[Any]) -> "PromptPrefix":
        state, keys = _digest(json.dumps(model).encode()), []
        for message in messages:
            state.update(json.dumps(message).encode())
            keys.append(state.hexdigest())
        if not keys:
            return NO_PREFIX
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        head = roles.index("user") if "user" in roles else 0
        if head == len(keys) - 1:
            return cls(group=keys[head])
        earlier = reversed(keys[max(head + 1, len(keys) - 1 - _LOOK_BACK) : -1])
        return cls(group=keys[head], whole=keys[-1], earlier=tuple(earlier))


NO_PREFIX = PromptPrefix()


def _digest(data: bytes) -> "blake2b":
    return blake2b(data, digest_size=16)
