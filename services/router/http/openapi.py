"""What /openapi.json says of the endpoints that write their own streams.

The router reads few fields of a body and judges none that vLLM judges. So the schema has what
a request cannot do without and what is the router's own, and leaves the rest open.
"""

from typing import Any

from fastapi import FastAPI

from services.http.openapi import ERRORS, json_body
from services.protocol.router import (
    MIN_VERSION_HEADER,
    PRIORITY_HEADER,
    RETURN_TRAJECTORY,
    SESSION_HEADER,
    STREAM_BY,
)
from services.router.http.batches import BATCH_PATH
from services.router.request.client_request import PATHS, Endpoint

_OWN_FIELDS = {
    "model": {"type": "string"},
    "stream": {"type": "boolean", "default": False},
    "n": {"type": "integer", "minimum": 1, "default": 1},
    RETURN_TRAJECTORY: {"type": "boolean", "default": False},
    STREAM_BY: {"enum": ["token", "choice"], "default": "token"},
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"role": {"type": "string"}},
        "required": ["role"],
    },
}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PROMPT = {"anyOf": [{"type": "string"}, _TOKENS, {"type": "array", "items": {"type": "string"}}]}
_INPUT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
_HEADERS = {
    SESSION_HEADER: {"type": "string"},
    MIN_VERSION_HEADER: {"type": "integer"},
    PRIORITY_HEADER: {"type": "integer"},
}


def describe_answers(app: FastAPI) -> None:
    """Add the endpoints that generate to the application's schema."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        schema = describe()
        operations: dict[Endpoint, dict[str, Any]] = {
            "chat": _operation("Answer a conversation, as vLLM does.", {"messages": _MESSAGES}),
            "tokens": _operation(
                "The same, from a prompt of tokens.", {"messages": _MESSAGES, "tokens": _TOKENS}
            ),
            "completions": _operation("Go on with a text, as vLLM does.", {"prompt": _PROMPT}),
            "messages": _operation(
                "Answer a conversation, as Anthropic does.",
                {"messages": _MESSAGES, "max_tokens": {"type": "integer", "minimum": 1}},
            ),
            "responses": _operation("Answer, as OpenAI's Responses do.", {"input": _INPUT}),
            "generate": _operation(
                "Tokens for tokens, as vLLM does.",
                {"token_ids": _TOKENS, "sampling_params": {"type": "object"}},
            ),
        }
        schema["paths"] |= {
            PATHS[endpoint]: {"post": operation} for endpoint, operation in operations.items()
        }
        schema["paths"]["/invocations"] = {
            "post": _operation("A chat or a completion, at the path that SageMaker posts to.", {})
        }
        several = {"type": "array", "minItems": 1, "items": _MESSAGES}
        schema["paths"][BATCH_PATH] = {
            "post": _operation("Answer several conversations, as vLLM does.", {"messages": several})
        }
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI documents


def query(schema: dict[str, Any]) -> dict[str, Any]:
    """The query of an operation that reads it by itself."""
    fields = schema["properties"].items()
    return {"parameters": [{"name": name, "in": "query", "schema": one} for name, one in fields]}


def _operation(summary: str, wants: dict[str, Any]) -> dict[str, Any]:
    body = {"type": "object", "properties": wants | _OWN_FIELDS, "required": list(wants)}
    answer = {
        "type": "object",
        "properties": {"model": {"type": "string"}},
        "required": ["model"],
    }
    success = {
        "description": "The answer, whole or as server-sent events.",
        "content": {
            "application/json": {"schema": answer},
            "text/event-stream": {},
        },
    }
    return {
        "summary": summary,
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": schema}
            for name, schema in _HEADERS.items()
        ],
        **json_body(body, required=True),
        "responses": {"200": success, **ERRORS},
    }
