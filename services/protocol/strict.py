"""The base class of every configuration and HTTP body."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from services.protocol.errors import InvalidInput
from services.protocol.yaml_text import load_yaml

Place = Sequence[str | int]
_DEPTH = 4
_MOST = 3
_WRONG_FIELD = "wrong_field"


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


def wrong_field(field: str, value: object, fix: str) -> PydanticCustomError:
    """For a rule across fields to raise: `first_problem` then names this one, below the model."""
    return PydanticCustomError(_WRONG_FIELD, "{fix}", {"field": field, "value": value, "fix": fix})


def nearest(value: object, known: Sequence[str]) -> str:
    """The end of a fix that lists what is known: the one that was meant; empty without one."""
    by_small = {name.lower(): name for name in known}
    found = get_close_matches(str(value).lower(), by_small, n=1)
    return f"; the nearest is {by_small[found[0]]}" if found else ""


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
    elif problem["type"] == "literal_error":
        fix += nearest(problem["input"], _quoted(problem["ctx"]["expected"]))
    elif problem["type"] == "union_tag_invalid":
        fix += nearest(problem["ctx"]["tag"], _quoted(problem["ctx"]["expected_tags"]))
    elif problem["type"] == _WRONG_FIELD:
        wrong = problem["ctx"]
        at = ".".join(str(part) for part in (*problem["loc"], wrong["field"]))
        return InvalidInput(f"{source}: {at}", wrong["value"], wrong["fix"])
    value = "(missing)" if problem["type"] == "missing" else problem["input"]
    if not problem["loc"] and isinstance(value, dict):
        value = "(several keys)"  # a rule across fields, whose message names them
    return InvalidInput(f"{source}: {field}", value, fix.rstrip(".") + ".")


def _quoted(listed: str) -> list[str]:
    """The names in a list as pydantic writes it."""
    return re.findall("'([^']+)'", listed)


def no_such_key(key: str, place: Place, model: type[BaseModel]) -> str:
    """The fix for a key at `place` that `model` does not declare there: where else it declares
    that key, or the nearest that it declares there.

    Args:
        place: pydantic's `loc` of the key's parent.
    """
    here = [model]
    for part in place:
        here = _below(here, part)
    if elsewhere := list(islice(_places_of(key, model), _MOST)):
        return f"No such key here; it belongs to {' or '.join(elsewhere)}"
    known = {name for one in here for name, _ in _fields(one)} - {key}
    return f"No such key{nearest(key, sorted(known)) or '; check its spelling and its place'}"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's type allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def _below(here: list[type[BaseModel]], part: str | int) -> list[type[BaseModel]]:
    """The models at the next part of a place: a member of a union by its tag, or a field's."""
    if len(here) > 1 and (chosen := [one for one in here if _has_tag(one, part)]):
        return chosen
    fields = [field for one in here for name, field in _fields(one) if name == part]
    if not fields:  # the place in a list
        return here
    return [one for field in fields for one in models_in(field.annotation)]


def _has_tag(model: type[BaseModel], tag: str | int) -> bool:
    kinds = [field.annotation for field in model.model_fields.values()]
    return any(get_origin(kind) is Literal and tag in get_args(kind) for kind in kinds)


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """By their names in data."""
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _places_of(key: str, model: type[BaseModel]) -> Iterator[str]:
    """The parts of `model` that declare `key`, the nearest to its top first."""
    if any(key == name for name, _ in _fields(model)):
        yield "the top level"
    level = [("", model)]
    for _ in range(_DEPTH):
        below = {
            f"{path}{name}": part
            for path, one in level
            for name, field in _fields(one)
            for part in models_in(field.annotation)
            if not _is_one_of_many(field)
        }
        yield from (
            path for path, part in below.items() if any(key == name for name, _ in _fields(part))
        )
        level = [(f"{path}.", part) for path, part in below.items()]


def _is_one_of_many(field: FieldInfo) -> bool:
    """Of a union's members only the tag says which is meant."""
    return len(models_in(field.annotation)) > 1
