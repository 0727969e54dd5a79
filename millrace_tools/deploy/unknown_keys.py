"""Finds keys that a pydantic model would ignore, at every level below it."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from services.protocol.strict import models_in, no_such_key


def unknown_keys(
    data: Any, model: type[BaseModel], path: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """The dotted paths, values and fixes of keys in `data` that `model` does not declare.

    Fields whose type allows a model are searched as that model; a plain dict is free.
    """
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        field = model.model_fields.get(key)
        if field is None:
            yield where, value, no_such_key(str(key), (), model)
            continue
        inner = next(iter(models_in(field.annotation)), None)
        if inner is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from unknown_keys(item, inner, f"{where}[{_name_of(item, index)}]")
        else:
            yield from unknown_keys(value, inner, where)


def _name_of(item: Any, index: int) -> str:
    """People know an application by its name, not by its place in a list."""
    name = item.get("name") if isinstance(item, dict) else None
    return str(name) if name else str(index)
