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
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
                "value": {},
                "fix": {"type": "string"},
            },
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_ERROR = {"content": {"application/json": {"schema": _ERROR_SCHEMA}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "It cannot be served; the message names the field."} | _ERROR,
    "5XX": {"description": "It could not be served now, but may be later."} | _ERROR,
}
"""Of every operation; see `services.http.error_answer`."""


def json_body(schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    """The body of an operation that reads it by itself."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}


def component(model: type[BaseModel]) -> dict[str, Any]:
    """A reference to a model that `describe_bodies` adds."""
    return {"$ref": _COMPONENTS.format(model=model.__name__)}


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
