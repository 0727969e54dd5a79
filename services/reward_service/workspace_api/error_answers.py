"""What the errors of workspaces are over HTTP, in the house's shape."""

import math

from fastapi import FastAPI, Request

from services.http.error_answer import answer_invalid_input, error_answer, error_body
from services.http.json_body import AsciiJson, BodyRefused
from services.protocol.errors import InvalidInput, NotReady
from services.reward_service.workspaces.errors import (
    JailLost,
    NoSuchFile,
    QuotaFull,
    UnknownSnapshot,
    UnknownWorkspace,
    WorkspaceFault,
    WorkspaceGone,
)

_BODY_FIX = "Send large files in parts, or as a compressed archive."
_NONE_FIX = "You have none of this id: GET /v1/sandboxes lists those that are open."
_SNAPSHOT_FIX = "You have none of this id, or no more: snapshots are dropped when they are unused."
_GONE = {
    "closed": "It was closed: open another one.",
    "idle": "It had no call for idle_s: open another one, with a longer idle_s.",
    "total": "It was open for total_s: open another one, with a longer total_s.",
    "lost": "Its jail died or its replica is gone, with its files: open another one.",
    "memory": "Its programs held more than memory_mb between two calls: open another one.",
    "disk": "Its files took more than disk_mb: open another one.",
    "shutdown": "The service ended: open another one.",
}
_RETRY_S = 1.0


def answer_to(error: Exception, some_id: str = "") -> AsciiJson:
    """The answer to a call that ended in one of the errors of workspaces."""
    match error:
        case WorkspaceGone():
            return _answer(410, "workspace_gone", str(error), _GONE[error.reason], error.reason)
        case UnknownWorkspace():
            return error_answer(404, "id", some_id, _NONE_FIX)
        case UnknownSnapshot():
            return error_answer(404, "snapshot", some_id, _SNAPSHOT_FIX)
        case NoSuchFile():
            return error_answer(404, error.field, error.value, error.fix)
        case InvalidInput():
            return error_answer(400, error.field, error.value, error.fix)
        case BodyRefused():
            return error_answer(error.status, "body", str(error), _BODY_FIX)
        case QuotaFull():
            answer = _answer(429, "quota_full", str(error), "Try again later, or close some.")
            answer.headers["retry-after"] = str(math.ceil(error.retry_after_s))
            return answer
    kind = "not_ready" if isinstance(error, NotReady) else "workspace_fault"
    answer = _answer(503, kind, str(error), "Nothing that you did: try again.")
    answer.headers["retry-after"] = str(math.ceil(_RETRY_S))
    return answer


def add_error_answers(app: FastAPI) -> None:
    """Have an application answer so."""
    answer_invalid_input(app)

    async def answer(request: Request, error: Exception) -> AsciiJson:
        named = request.path_params
        return answer_to(error, named.get("workspace_id") or named.get("snapshot_id", ""))

    kinds = (WorkspaceGone, UnknownWorkspace, UnknownSnapshot, NoSuchFile, BodyRefused, QuotaFull)
    for kind in (*kinds, WorkspaceFault, JailLost, NotReady):
        app.add_exception_handler(kind, answer)


def _answer(code: int, kind: str, message: str, fix: str, reason: str | None = None) -> AsciiJson:
    more = {} if reason is None else {"reason": reason}
    body = error_body(message, kind=kind, code=code, param="id", fix=fix, **more)
    return AsciiJson(body, status_code=code)
