"""Which of vLLM's HTTP paths a rollout server answers.

vLLM's application also has paths by which anybody ends other people's requests or changes
the engine, and with its development mode many more. Control goes through the weight bus
(`replica_control.py`), so whatever is not named here is taken out.
"""

from typing import Any

PUBLIC = frozenset(
    {
        "/health",
        "/ping",
        "/version",
        "/load",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
        "/tokenize",
        "/detokenize",
        "/inference/v1/generate",
    }
)
API = "/v1/"
"""OpenAI's and Anthropic's interfaces, and what renders for them."""


def keep_public_routes(app: Any) -> None:
    """Take every other route out of a FastAPI application."""
    app.router.routes = [route for route in app.router.routes if _is_public(route.path)]
    app.openapi_schema = None  # it would go on describing them


def _is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith(API)
