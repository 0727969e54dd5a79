"""An error over HTTP: `{"error": {field, value, fix, message}}`."""

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from services.access.json_body import AsciiJson, BodyTooLarge, BodyTooSlow
from services.protocol.errors import InvalidInput

_SHOWN = 1000  # characters of what was wrong


def error_answer(
    code: int, field: str, value: object, fix: str, *, message: str | None = None
) -> AsciiJson:
    """The answer; its message is that of `InvalidInput` unless another is given.

    What a client sent is told to it again, but not a megabyte of it, nor a float that is no JSON.
    """
    shown = value if isinstance(value, int | bool | None) else _brief(value)
    said = str(InvalidInput(field, shown, fix)) if message is None else message
    error = {"field": _brief(field), "value": shown, "fix": fix, "message": _brief(said)}
    return AsciiJson({"error": error}, status_code=code)


def answer_invalid_input(app: FastAPI) -> None:
    """Have an application answer 400 to input that it cannot use."""

    def invalid_input(_: Request, error: Exception) -> AsciiJson:
        assert isinstance(error, InvalidInput)
        return error_answer(400, error.field, error.value, error.fix)

    app.add_exception_handler(InvalidInput, invalid_input)


def answer_bad_bodies(app: FastAPI, *, large: str, slow: str) -> None:
    """Have an application answer to bodies that `read_body` refuses.

    Args:
        app: the application.
        large: what to do about one that is too large.
        slow: what to do about one that comes too slowly.
    """

    def too_large(_: Request, error: Exception) -> AsciiJson:
        return error_answer(413, "body", str(error), large)

    def too_slow(_: Request, error: Exception) -> AsciiJson:
        return error_answer(408, "body", str(error), slow)

    def gone(_: Request, error: Exception) -> Response:
        """Nobody reads it: the client left before its request was complete."""
        return Response(status_code=400)

    app.add_exception_handler(BodyTooLarge, too_large)
    app.add_exception_handler(BodyTooSlow, too_slow)
    app.add_exception_handler(ClientDisconnect, gone)


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
