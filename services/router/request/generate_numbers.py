"""Numbers of a generate request's sampling parameters that the router calculates with."""

from typing import Any

from pydantic import BaseModel


class _Numbers(BaseModel):
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int | None = 0
    seed: int | None = None


def generate_numbers(params: dict[str, Any]) -> dict[str, int | None]:
    """Those that the parameters have, as vLLM reads them: it takes `"3"` and 3.0, too.

    Raises:
        pydantic.ValidationError: one is no whole number.
    """
    return _Numbers.model_validate(params).model_dump(exclude_unset=True)
