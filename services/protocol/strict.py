"""The base class of every configuration and HTTP body."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from services.protocol.errors import InvalidInput
from services.protocol.spelling import no_such_key
from services.protocol.yaml_text import load_yaml


class StrictModel(BaseModel):
    """A frozen pydantic model in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read and check a YAML file.

        Raises:
            InvalidInput: the file is missing, is not YAML or does not fit the model.
        """
        return cls.from_data(load_yaml(path), source=str(path))

    @classmethod
    def from_data(cls, data: Any, *, source: str) -> Self:
        """Check plain data; `source` is what an error message calls it.

        Raises:
            InvalidInput: the first field that does not fit, with its value and a fix.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise first_problem(error, source, cls) from None


def first_problem(error: ValidationError, source: str, model: type[BaseModel]) -> InvalidInput:
    """Turn pydantic's complaints about data for `model` into one `InvalidInput`: the first
    unknown key, else the first of all, because a misspelt key is the reason why the right one
    is missing."""
    problems = error.errors(include_url=False)
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])
    field = ".".join(str(part) for part in problem["loc"]) or "(whole document)"
    fix = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        *place, key = problem["loc"]
        fix = no_such_key(str(key), place, model)
    elif problem["type"] == "missing":
        fix = "This key is required"
    value = "(missing)" if problem["type"] == "missing" else problem["input"]
    if not problem["loc"] and isinstance(value, dict):
        value = "(several keys)"  # a rule across fields, whose message names them
    return InvalidInput(f"{source}: {field}", value, fix.rstrip(".") + ".")
