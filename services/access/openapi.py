"""What an OpenAPI document says of bodies and errors that a service reads and writes by itself."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_COMPONENTS = "#/components/schemas/{model}"
_ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "field": {"type": "string"},
                "value": {},
                "fix": {"type": "string"},
                "message": {"type": "string"},
            },
            "required": ["field", "value", "fix", "message"],
        }
    },
    "required": ["error"],
}
_ERROR = {"content": {"application/json": {"schema": _ERROR_SCHEMA}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "It cannot be used; the body names the field and the fix."} | _ERROR,
    "5XX": {"description": "It cannot be answered now."} | _ERROR,
}
"""Of every operation that answers in the shape of `services.protocol.errors.InvalidInput`."""


def json_body(model: type[BaseModel], *, required: bool = False) -> dict[str, Any]:
    """The body of an operation that reads it by itself; `describe_bodies` says what it is."""
    content = {"application/json": {"schema": {"$ref": _COMPONENTS.format(model=model.__name__)}}}
    return {"requestBody": {"required": required, "content": content}}


def describe_bodies(app: FastAPI, *models: type[BaseModel]) -> None:
    """Add models, and those that they hold, to the document of the application."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in models:
            schema = model.model_json_schema(ref_template=_COMPONENTS)
            schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI documents
