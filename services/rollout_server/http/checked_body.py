"""Bodies that are read in the place of vLLM's own routes."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

_Read = TypeVar("_Read")


def checked(read: Callable[[Any], _Read], body: Any) -> _Read:
    """The body as `read` has it.

    Raises:
        RequestValidationError: that of vLLM's own route for the same body.
    """
    try:
        return read(body)
    except ValidationError as error:
        found = [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        raise RequestValidationError(found, body=body) from None
