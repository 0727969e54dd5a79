"""Requests that any replica answers by itself, and that make no tokens."""

from typing import Any

from fastapi import APIRouter, Request, Response

from services.http.json_body import AsciiJson, json_bytes, read_body
from services.http.openapi import ERRORS, json_body
from services.protocol.router import SESSION_HEADER
from services.router.doors.messages import messages_error
from services.router.errors import RequestFailed
from services.router.http.answer_endpoint import parsed
from services.router.request.client_request import session_key
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.upstream.replicas import Replicas

PATHS = (
    "/tokenize",
    "/detokenize",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
)
"""vLLM's; a replica whose model generates refuses those that are for other models."""


TOKENIZER_INFO = "/tokenizer_info"
_NOT_TOLD = (
    "the replicas do not tell of their tokenizer: set "
    "rollout_server.engine_args.enable_tokenizer_info_endpoint: true"
)


def forwarded_routes(replicas: Replicas, sessions: SessionRecords) -> APIRouter:
    """The routes; a call of an offered session is for the offer's model, as its answers are."""
    routes, config = APIRouter(responses=ERRORS), replicas.config

    async def forward(request: Request) -> Response:
        """Have a replica answer."""
        path = request.url.path
        try:
            raw = await read_body(
                request.receive,
                max_bytes=config.max_body_bytes,
                timeout_s=config.client_read_s,
                refused=RequestFailed,
            )
            body: Any = parsed(raw)
            session = _session(request)
            fixed = await sessions.offered_model(session)
            if fixed is not None and isinstance(body, dict):
                body["model"] = fixed
                raw = json_bytes(body)
            named = body.get("model") if isinstance(body, dict) else None
            model = named if isinstance(named, str) and named else None
            return AsciiJson(await replicas.ask(path, raw, model=model, session=session))
        except RequestFailed as failure:
            if path.startswith("/v1/messages"):
                return AsciiJson(_error(failure), failure.status, failure.headers)
            raise

    @routes.get(TOKENIZER_INFO)
    async def tokenizer_info(request: Request, model: str | None = None) -> Response:
        """The tokenizer of a model, any that is served if none is named."""
        session = _session(request)
        named = await sessions.offered_model(session) or model or None
        try:
            told = await replicas.ask(TOKENIZER_INFO, None, model=named, session=session)
        except RequestFailed as failure:
            if failure.status == 404 and failure.kind != "model_not_found":
                raise RequestFailed(404, "not_served", _NOT_TOLD) from None
            raise
        return AsciiJson(told)

    extra = json_body({"type": "object"}, required=True)
    for path in PATHS:
        routes.add_api_route(path, forward, methods=["POST"], openapi_extra=extra)
    return routes


def _session(request: Request) -> str | None:
    return session_key(request.headers) or request.headers.get(SESSION_HEADER)


def _error(failure: RequestFailed) -> dict[str, Any]:
    return messages_error(failure.status, str(failure.body["error"].get("message") or failure))
