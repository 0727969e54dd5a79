"""What a request needs of a replica besides its model, and its place in the line."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.protocol.router import MIN_VERSION_HEADER, PRIORITY_HEADER
from services.router.errors import bad_request
from services.router.request.prompt_prefix import NO_PREFIX, PromptPrefix


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a request says of itself, or what follows from it.

    Attributes:
        min_version: lowest policy version of a replica that may answer; None: any.
        priority: lower goes first, as in vLLM; 0 unless the client says something else.
        flow: those who wait under one name take turns with those under another.
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

    def at_least(self, version: int | None) -> "Needs":
        """The same, of a replica that serves this version or a newer one; None: any."""
        if version is None or version <= (self.min_version or 0):
            return self
        return replace(self, min_version=version)


NO_NEEDS = Needs()


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise bad_request(f"{name} must be an integer, not {value[:40]!r}", name) from None
