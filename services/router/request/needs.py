"""What a request needs of a replica, and what it may find in its KV cache."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from services.protocol.router import MIN_VERSION_HEADER, PRIORITY_HEADER
from services.router.errors import bad_request

_HEAD_CHARACTERS = 4096
_LOOK_BACK = 16
"""Messages that one turn may add, such as an answer and the results of many tools."""


@dataclass(frozen=True, kw_only=True)
class PromptPrefix:
    """Keys of a prompt: requests that begin alike can share a KV cache, without naming anything.

    The prompt up to its first user message is the same for all samples of a group. A conversation
    that goes on repeats all that its last call has said before its new messages. Keys are digests,
    so that the tables that hold them hold no text.

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
        """Of any body: the replica validates it."""
        messages = body.get("messages", body.get("input"))
        if isinstance(messages, list):
            before = body.get("system", body.get("instructions"))
            opening = [{"role": "system", "content": before}] if before else []
            return cls._of_messages(body.get("model"), opening + messages)
        prompt = body.get("prompt") or messages or body.get("token_ids")
        if not isinstance(prompt, str | list) or not prompt:
            return NO_PREFIX
        # Nothing to tell turns by: what begins alike for so long is a group.
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


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a request says of itself, or what follows from it.

    Attributes:
        min_version: lowest policy version of a replica that may answer; None: any.
        priority: lower goes first, as in vLLM; 0 unless the client says something else.
        flow: requests that wait under one name take turns with those under another.
        prefix: how the prompt begins.
    """

    min_version: int | None = None
    priority: int = 0
    flow: str = ""
    prefix: PromptPrefix = NO_PREFIX

    @classmethod
    def of(cls, body: dict[str, Any], headers: Mapping[str, str], *, flow: str) -> "Needs":
        """Of a client's request.

        Raises:
            RequestFailed: 400, with the header at fault.
        """
        own = body.get("priority")
        priority = _integer(headers, PRIORITY_HEADER)
        if priority is None:
            priority = own if isinstance(own, int) else 0
        version = _integer(headers, MIN_VERSION_HEADER)
        if version is not None and version < 0:
            raise bad_request(f"{MIN_VERSION_HEADER} must be 0 or more", MIN_VERSION_HEADER)
        return cls(min_version=version, priority=priority, flow=flow, prefix=PromptPrefix.of(body))

    def at_least(self, version: int) -> "Needs":
        """The same, of a replica that serves this version or a newer one."""
        known = self.min_version or 0
        return replace(self, min_version=version) if version > known else self


NO_NEEDS = Needs()


def _digest(data: bytes) -> "blake2b":
    return blake2b(data, digest_size=16)


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise bad_request(f"{name} must be an integer, not {value[:40]!r}", name) from None
