"""A server on loopback that asks another one, and remembers what was said."""

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Self

import httpx
from aiohttp import web

from services.protocol.router import SESSION_HEADER

_ANSWER_S, _SHOWN = 600.0, 300


@dataclass(frozen=True)
class Exchange:
    """One call of an episode.

    Attributes:
        asked: the conversation, or the prompt.
        answered: the whole answer, as JSON; None if it was an error.
        problem: status and words of an error, empty if there was none.
    """

    asked: list[dict[str, Any]]
    answered: dict[str, Any] | None
    problem: str


class ForwardedPolicy:
    """Passes OpenAI's calls on, whole answers only; use it as an async context.

    Args:
        url: base URL of an OpenAI-compatible server, without `/v1`.
        model: replaces the model that a call names.
        api_key: that the server asks for.

    Attributes:
        url: where it answers.
        exchanges: of each episode, in order.
    """

    def __init__(self, url: str, model: str, api_key: str) -> None:
        self.url = ""
        self.exchanges: dict[str, list[Exchange]] = defaultdict(list)
        self._there, self._model, self._key = url.rstrip("/"), model, api_key
        self._numbers = itertools.count()
        self._http = httpx.AsyncClient(trust_env=False, timeout=_ANSWER_S)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/{rest:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop listening."""
        await self._runner.cleanup()
        await self._http.aclose()

    def begin(self, script: object = None) -> str:
        """The name of a new episode."""
        return f"try-{next(self._numbers)}"

    def end(self, episode: str) -> int:
        """How many calls an episode has made."""
        return len(self.exchanges[episode])

    async def _pass(self, request: web.Request) -> web.Response:
        body = await request.json() | {"model": self._model, "stream": False}
        body.pop("stream_options", None)
        asked = body.get("messages") or [{"role": "user", "content": str(body.get("prompt"))}]
        headers = {"authorization": f"Bearer {self._key}"}
        own = self.exchanges[request.headers.get(SESSION_HEADER, "")]
        answered: dict[str, Any] | None = None
        try:
            answer = await self._http.post(
                f"{self._there}/v1/{request.match_info['rest']}", json=body, headers=headers
            )
            good = answer.status_code == httpx.codes.OK
            answered = answer.json() if good else None
            problem = "" if good else f"{answer.status_code}: {answer.text[:_SHOWN]}"
        except (httpx.HTTPError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        own.append(Exchange(asked, answered, problem))
        if answered is not None:
            return web.json_response(answered)
        # Shown at once: clients ask again for minutes when a server is busy.
        return web.json_response({"error": {"message": problem}}, status=400)
