"""An OpenAI-compatible server on loopback whose answers a script chooses."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from aiohttp import web

from services.protocol.router import SESSION_HEADER

Script = Callable[[Sequence[dict[str, Any]]], str]
"""The answer to a conversation; raises `Refuse` for a server that fails."""

_MODEL = "scripted"


class Refuse(Exception):
    """The server answers with status 400, which no client asks again."""


class ScriptedPolicy:
    """Serves `/v1/chat/completions` and `/v1/completions`; use it as an async context.

    Attributes:
        url: where it answers.
    """

    def __init__(self) -> None:
        self.url = ""
        self._calls: dict[str, int] = {}
        self._scripts: dict[str, Script] = {}
        self._numbers = itertools.count()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    def begin(self, script: Script) -> str:
        """The name of a new episode, whose calls this script answers."""
        episode = f"audit-{next(self._numbers)}"
        self._scripts[episode], self._calls[episode] = script, 0
        return episode

    def end(self, episode: str) -> int:
        """How many calls an episode has made; it may make no more."""
        del self._scripts[episode]
        return self._calls.pop(episode)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        said = self._said(request, body.get("messages") or [])
        if said is None:
            return web.json_response({"error": {"message": "refused on purpose"}}, status=400)
        message = {"role": "assistant", "content": said}
        return await self._answer(request, body, "chat.completion", {"message": message})

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        said = self._said(request, [{"role": "user", "content": str(body.get("prompt", ""))}])
        if said is None:
            return web.json_response({"error": {"message": "refused on purpose"}}, status=400)
        return await self._answer(request, body, "text_completion", {"text": said})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": _MODEL, "object": "model"}]})

    def _said(self, request: web.Request, messages: list[dict[str, Any]]) -> str | None:
        episode = request.headers.get(SESSION_HEADER, "")
        if episode not in self._scripts:
            raise web.HTTPNotFound(text="no such episode")
        self._calls[episode] += 1
        try:
            return self._scripts[episode](messages)
        except Refuse:
            return None

    async def _answer(
        self, request: web.Request, body: dict[str, Any], kind: str, said: dict[str, Any]
    ) -> web.StreamResponse:
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        about = {"id": "audit", "created": int(time.time()), "model": _MODEL}
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        if not body.get("stream"):
            whole = about | {"object": kind, "choices": [choice | said], "usage": usage}
            return web.json_response(whole)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        piece = {"delta": said["message"]} if "message" in said else said
        chunk = about | {"object": "chat.completion.chunk", "choices": [choice | piece]}
        await response.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return response
