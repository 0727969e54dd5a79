"""What somebody may have meant by a key that there is not."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Place = Sequence[str | int]
_DEPTH = 4
_MOST = 3


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
    if nearest := get_close_matches(key, sorted(known), n=1):
        return f"No such key; the nearest is {nearest[0]}"
    return "No such key; check its spelling and its place"


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
