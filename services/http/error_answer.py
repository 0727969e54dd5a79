"""An error over HTTP, in OpenAI's shape."""

from typing import Any

from fastapi import FastAPI, Request

from services.http.json_body import AsciiJson, BodyRefused
from services.protocol.errors import InvalidInput

_SHOWN = 1000  # characters of what was wrong


def error_body(
    message: str, *, kind: str, code: int, param: str | None = None, **more: object
) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`, and what else is known of the error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **more}}


def error_answer(
    code: int, param: str, value: object, fix: str, *, message: str | None = None
) -> AsciiJson:
    """An error that also has `value` and `fix`; see `services.protocol.errors.InvalidInput`.

    The message is that of `InvalidInput` unless another is given. The value that a client sent is
    cut short, and a float is shown as text: not every float is JSON.
    """
    shown = value if isinstance(value, int | bool | None) else _brief(value)
    said = str(InvalidInput(param, shown, fix)) if message is None else message
    kind = "invalid_request_error" if code < 500 else "server_error"
    body = error_body(_brief(said), kind=kind, code=code, param=_brief(param), value=shown, fix=fix)
    return AsciiJson(body, status_code=code)


def answer_invalid_input(app: FastAPI) -> None:
    """Have an application answer 400 to input that it cannot use."""

    def invalid_input(_: Request, error: Exception) -> AsciiJson:
        assert isinstance(error, InvalidInput)
        return error_answer(400, error.field, error.value, error.fix)

    app.add_exception_handler(InvalidInput, invalid_input)


def answer_refused_bodies(app: FastAPI, *, fix: str) -> None:
    """Have an application answer to bodies that `read_body` refuses; `fix` is for all of them."""

    def refused(_: Request, error: Exception) -> AsciiJson:
        assert isinstance(error, BodyRefused)
        return error_answer(error.status, "body", str(error), fix)

    app.add_exception_handler(BodyRefused, refused)


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
