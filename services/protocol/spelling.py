"""What somebody may have meant by a key that there is not."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Place = Sequence[str | int]
_DEPTH = 4


def no_such_key(key: str, place: Place, model: type[BaseModel]) -> str:
    """The fix for a key at `place` that `model` does not declare there: the nearest that it
    does, or where else it declares that key."""
    here = [model]
    for part in place:
        # What is no field is the place in a list or the tag of a union.
        fields = [field for one in here for name, field in _fields(one) if name == part]
        if fields:
            here = [one for field in fields for one in models_in(field.annotation)]
    known = [name for one in here for name, _ in _fields(one)]
    if nearest := get_close_matches(key, known, n=1):
        return f"No such key; the nearest is {nearest[0]}"
    if elsewhere := next(_places_of(key, model), None):
        return f"No such key here; it belongs to {elsewhere}"
    return "No such key; check its spelling and its place"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's type allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """By their names in data."""
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _places_of(key: str, model: type[BaseModel], depth: int = _DEPTH) -> Iterator[str]:
    """Dotted paths of the parts of `model` that declare `key`."""
    for name, field in _fields(model) if depth else ():
        for part in models_in(field.annotation):
            if any(key == known for known, _ in _fields(part)):
                yield name
            yield from (f"{name}.{place}" for place in _places_of(key, part, depth - 1))
