"""One request in place of two: renders a client's request and generates from it.

Over vLLM's own routes a journalled answer takes two requests, and at 64 at once the second
costs more than the router. Here vLLM's two services are called one after the other in the
process that has both, and what its HTTP layer checks is checked once.
"""

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import request_response
from starlette.types import Receive, Scope, Send
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.generate.base.protocol import StreamOptions
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.utils.api_utils import with_cancellation
from vllm.sampling_params import SamplingParams

from services.protocol.rollout_server import (
    CUT,
    HISTORY_DEPENDENT,
    PARSE_ANSWER,
    RENDER_AND_GENERATE,
    UNMASKED,
    GenerationOrder,
    RecordedStart,
)
from services.protocol.session import CutReason
from services.rollout_server.http.chat_requests import chat_of_messages, chat_of_responses
from services.rollout_server.http.checked_body import checked
from services.rollout_server.http.continued_prompt import continued_prompt
from services.rollout_server.http.parse_answer import parse_answer

_JSON = "application/json"
_MAX_LOGPROBS = 20
"""vLLM's default."""
_SEEDS = 1 << 31


class RenderAndGenerate:
    """An ASGI application: our routes, and vLLM's application for everything else.

    Around vLLM's, not in it: its layers of CORS, metrics and routes are for its own clients.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        handlers: Any = app.exception_handlers  # so that errors look as those of vLLM's own routes
        self._routes = {
            path: ExceptionMiddleware(request_response(route), handlers=handlers)
            for path, route in _ROUTES.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is not None:
            scope["app"] = self._app
            await route(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def prepare(rendered: GenerateRequest, order: GenerationOrder) -> GenerateRequest:
    """Make what was rendered a request for text and usage, nearly always streaming.

    For completions one alternative more is asked for: generate counts the sampled token as one
    of them, even when it is none of the best.
    """
    if order.fixed is not None:
        rendered.sampling_params = _fixed(rendered.sampling_params, order.fixed)
    params = rendered.sampling_params
    parses = order.offers_tools or rendered.reasoning_parser_kwargs is not None
    if params.logprobs is None:
        # Marks that a parser looks for are recognised by their entries.
        params.logprobs = 0 if order.logprobs or (parses and order.shown_early) else None
    elif order.endpoint == "completions" and 0 < params.logprobs < _MAX_LOGPROBS:
        params.logprobs += 1
    if (
        order.shown_early
        and params.seed is None
        and any(getattr(params, name, None) for name in HISTORY_DEPENDENT)
    ):
        params.seed = secrets.randbelow(_SEEDS)
    if order.interval is not None:
        params.stream_interval = order.interval
    rendered.request_id, rendered.output_mode = order.request_id, "text"
    rendered.stream = order.interval is None or (params.max_tokens or 0) > order.interval
    rendered.stream_options = StreamOptions(include_usage=True) if rendered.stream else None
    return rendered


def _fixed(params: SamplingParams, fixed: dict[str, Any]) -> SamplingParams:
    most = fixed["max_tokens"]
    changes = {**UNMASKED, **fixed["sampling"], "max_tokens": min(params.max_tokens or most, most)}
    return msgspec.structs.replace(params, **changes)


async def _answer(request: Request) -> Response:
    order = GenerationOrder(**json.loads(await request.body()))
    response: Response | None = await _cancelled_with_client(order, request)
    return response or Response(status_code=499)  # the client has disconnected


async def _generate(order: GenerationOrder, raw_request: Request) -> Response:
    state = raw_request.app.state
    found = await rendered(order, raw_request)
    if isinstance(found, ErrorResponse):
        return _error(found)
    prepared = prepare(found.request, order)
    told = found.told()
    made = await state.serving_tokens.serve_tokens(prepared, raw_request)
    if isinstance(made, ErrorResponse):
        return _error(made)
    if isinstance(made, AsyncGenerator):
        return StreamingResponse(_events(told, made), media_type="text/event-stream")
    answer = made.model_dump_json().encode().removeprefix(b"{")
    return Response(b"{%b,%b" % (told, answer), media_type=_JSON)


_cancelled_with_client = with_cancellation(_generate)  # type: ignore[no-untyped-call]
_ROUTES = {RENDER_AND_GENERATE: _answer, PARSE_ANSWER: parse_answer}


@dataclass(frozen=True)
class Rendered:
    """What a client's request comes to."""

    request: GenerateRequest
    chat: str | None = None  # as JSON, where the client sent something else
    cut: CutReason | None = None  # why the prompt does not begin with the recorded tokens

    def told(self) -> bytes:
        """As JSON, without the braces."""
        request = self.request.model_dump_json(exclude_none=True).encode()
        chat = b"" if self.chat is None else b',"chat":%b' % self.chat.encode()
        cut = b"" if self.cut is None else b',"%b":"%b"' % (CUT.encode(), self.cut.encode())
        return b'"request":%b%b%b' % (request, chat, cut)


async def rendered(order: GenerationOrder, raw_request: Request) -> Rendered | ErrorResponse:
    """What vLLM generates from: its request with the prompt's tokens."""
    render = raw_request.app.state.serving_render
    if order.endpoint == "completions":
        completion = checked(CompletionRequest.model_validate, order.body)
        several = await render.render_completion_request(completion, raw_request)
        if isinstance(several, ErrorResponse):
            return several
        assert len(several) == 1, "several prompts have no journal"
        return Rendered(several[0])
    try:
        chat = await _chat(order, raw_request)
    except ValueError as error:  # vLLM's own conversions raise it, and its routes answer so
        return create_error_response(error)
    told = None if order.endpoint in ("chat", "tokens") else _told(chat)
    cut = None if order.start is None else await _continue(chat, order, raw_request)
    request = await render.render_chat_request(chat, raw_request)
    if isinstance(request, ErrorResponse):
        return request
    if order.endpoint == "tokens":
        return _with_tokens(request, order.body.get("tokens"), render.model_config.max_model_len)
    return Rendered(request, told, cut)


async def _continue(
    chat: ChatCompletionRequest, order: GenerationOrder, raw_request: Request
) -> CutReason | None:
    """Give the chat its prompt, which begins with the recorded tokens; or say why it has none."""
    assert order.start is not None
    start, body = RecordedStart(**order.start), order.body
    if order.endpoint != "chat":
        name = "input" if order.endpoint == "responses" else "messages"
        begun = {**body, name: body[name][: start.messages]}
        known = await _chat(replace(order, body=begun), raw_request)
        start = replace(start, messages=len(known.messages))
        body = json.loads(_told(chat))
    renderer = raw_request.app.state.serving_render.online_renderer
    prompt = await continued_prompt(renderer, body, start)
    if isinstance(prompt, str):
        return prompt
    # vLLM then renders no messages; all else about the request is as ever.
    chat.kv_transfer_params = {"prompt_token_ids": prompt}
    return None


def _told(chat: ChatCompletionRequest) -> str:
    """The chat for those that parse its answer; to render it changes its messages."""
    # Grammars are in the sampling parameters, and vLLM cannot read what it writes of them here.
    exclude = {"structured_outputs"}
    return chat.model_dump_json(
        exclude=exclude, exclude_unset=True, exclude_none=True, by_alias=True
    )


def _with_tokens(
    rendered: GenerateRequest, tokens: Any, max_model_len: int
) -> Rendered | ErrorResponse:
    """The request with the client's own prompt in place of the rendered messages."""
    left = max_model_len - len(tokens) if isinstance(tokens, list) else 0
    if left < 1 or not all(type(one) is int and one >= 0 for one in tokens) or not tokens:
        message = f"tokens must be a list of 1 to {max_model_len - 1} token ids"
        return create_error_response(message, param="tokens")
    rendered.token_ids = tokens
    rendered.sampling_params.max_tokens = min(rendered.sampling_params.max_tokens or left, left)
    return Rendered(rendered)


async def _chat(order: GenerationOrder, raw_request: Request) -> ChatCompletionRequest:
    if order.endpoint == "messages":
        messages = checked(AnthropicMessagesRequest.model_validate, order.body)
        return await chat_of_messages(messages, raw_request.app.state.anthropic_serving_messages)
    if order.endpoint == "responses":
        return chat_of_responses(checked(ResponsesRequest.model_validate, order.body))
    return checked(ChatCompletionRequest.model_validate, order.body)


async def _events(told: bytes, chunks: AsyncGenerator[str, None]) -> AsyncIterator[bytes | str]:
    yield b"data: {%b}\n\n" % told
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk


def _error(response: ErrorResponse) -> Response:
    return JSONResponse(response.model_dump(), status_code=response.error.code)
