"""The two ways in which a request goes wrong: for good, or only on this replica."""

import json
from typing import Any

from services.http.error_answer import error_body
from services.http.json_body import AsciiJson

_VLLM_TYPES = {
    "invalid_request_error": "BadRequestError",
    "model_not_found": "NotFoundError",
    "unreadable_body": "Bad Request",
}
"""How vLLM names the errors that both of us answer."""


class RequestFailed(Exception):
    """The client gets this error, in OpenAI's shape.

    Attributes:
        status: HTTP status, used while no byte of the answer has been sent.
        kind: named status of the request, counted.
        body: the JSON body.
        retry_after_s: value of the `Retry-After` header, None for no header.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        self.status, self.kind, self.retry_after_s = status, kind, retry_after_s
        shown = _VLLM_TYPES.get(kind, kind)
        self.body: dict[str, Any] = error_body(message, kind=shown, code=status, param=param)
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep everything when the error crosses a process boundary."""
        parts = (self.status, self.kind, str(self))
        return RequestFailed, parts, {"body": self.body, "retry_after_s": self.retry_after_s}

    @property
    def headers(self) -> dict[str, str]:
        """Those of the response."""
        return {"retry-after": str(self.retry_after_s)} if self.retry_after_s else {}

    def response(self) -> AsciiJson:
        """The error as a response."""
        return AsciiJson(self.body, self.status, self.headers)

    @classmethod
    def passed_on(cls, status: int, raw: bytes) -> "RequestFailed":
        """A replica's own client error, its body unchanged when it has OpenAI's shape."""
        failure = cls(status, "invalid_request_error", raw.decode(errors="replace")[:2000])
        try:
            body = json.loads(raw)
        except ValueError:
            return failure
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            failure.body = body
        return failure


def bad_request(message: str, param: str | None = None) -> RequestFailed:
    """A request that cannot be served as it is, with the field at fault."""
    return RequestFailed(400, "invalid_request_error", message, param=param)


def unreadable_body(message: str) -> RequestFailed:
    """A body that is no request at all."""
    return RequestFailed(400, "unreadable_body", message)


class Unjournaled(Exception):
    """Only the replica itself can answer this request; nothing of it has been generated yet.

    Attributes:
        name: the field because of which that is so.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


ENGINE_ERROR = "engine_error"
"""Reason of `UpstreamBroken` where an engine that is well ended one request with an error."""


class UpstreamBroken(Exception):
    """A replica failed this request; another one may continue it.

    Attributes:
        reason: `connection`, `status`, `eof`, `abort`, `error`, `engine_error`, `stalled`,
            `lease_lost`, `interrupted`, `unlabelled` or `malformed`; a tag of the failover counter.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)
