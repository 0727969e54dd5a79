"""Pages that say of every configuration class what its fields are, from the classes themselves."""

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from docstring_parser import DocstringStyle, parse
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} long",
    "maxLength": "at most {} long",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "pattern": "matches `{}`",
}
_NAMES = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "true or false",
    "null": "none",
}

Link = Callable[[str], str]
"""From the name of a class to Markdown that leads to it."""


def models_of(module: str) -> list[type[BaseModel]]:
    """Every public model that a module defines, in its order."""
    found = vars(import_module(module)).values()
    return [
        one
        for one in found
        if isinstance(one, type)
        and issubclass(one, BaseModel)
        and one.__module__ == module
        and not one.__name__.startswith("_")
    ]


def section(model: type[BaseModel], link: Link) -> str:
    """A heading, what the class is for, and a table of its fields."""
    schema = model.model_json_schema()
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    meanings = meanings_of(model)
    for name, field in model.model_fields.items():
        kind = describe(schema["properties"][field.alias or name], link)
        rows.append(
            f"| `{field.alias or name}` | {kind} | {_default(field)} | {_cell(meanings[name])} |"
        )
    about = cleandoc(model.__doc__ or "").partition("\n\nAttributes:")[0]
    table = "\n".join(rows) if model.model_fields else ""
    return f"### {model.__name__}\n\n{about}\n\n{table}\n"


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """The meaning of each field by the docstrings of the class, its base classes and its type."""
    said: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel):
            parsed = parse(base.__doc__ or "", DocstringStyle.GOOGLE)
            said |= {one.arg_name: one.description or "" for one in parsed.params}
    return {name: said.get(name) or _of_type(field) for name, field in model.model_fields.items()}


def _of_type(field: FieldInfo) -> str:
    """The meaning of a field by its type: a name that never changes, or the class that it holds."""
    kind = field.annotation
    if get_origin(kind) is Literal and len(get_args(kind)) == 1:
        return "always this: it tells the class from others."
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return cleandoc(kind.__doc__ or "").split("\n\n")[0]
    return field.description or ""


def describe(schema: Mapping[str, Any], link: Link) -> str:
    """A JSON schema in words, with its bounds."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(describe(option, link) for option in options))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    bounds = ", ".join(_bounds(schema))
    return f"{_base(schema, link)}, {bounds}" if bounds else _base(schema, link)


def _base(schema: Mapping[str, Any], link: Link) -> str:
    match schema.get("type"):
        case "array":
            return f"list of {describe(schema.get('items', {}), link)}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"mapping to {describe(schema['additionalProperties'], link)}"
        case "object":
            return "mapping"
        case kind:
            return _NAMES.get(str(kind), "anything")


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, words in _BOUNDS.items():
        if key in schema:
            yield words.format(schema[key])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        made = field.get_default(call_default_factory=True) if _is_empty(field) else None
        return "found out where it runs" if made is None else f"`{json.dumps(made)}`"
    if isinstance(field.default, BaseModel):
        return "its defaults"
    return "none" if field.default is None else f"`{json.dumps(field.default)}`"


def _is_empty(field: FieldInfo) -> bool:
    return field.default_factory in (dict, list)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
