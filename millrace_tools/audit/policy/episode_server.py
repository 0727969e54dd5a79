"""A server on loopback whose calls belong to episodes."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from millrace_tools.audit.policy.streamed import STREAMED, stream_of
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.router import SESSION_HEADER
from services.protocol.session import SESSION_PREFIX
from services.workspaces.client import PATH


@dataclass(frozen=True)
class Heard:
    """What a policy knows of an episode.

    Attributes:
        calls: that were made.
        said: the text of the last answer; empty without one.
        reward: sum of the rewards that its player has posted; None without one.
    """

    calls: int
    said: str
    reward: float | None


class EpisodeServer:
    """Answers `POST /v1/...`, as the router does to agents; use it as an async context.

    A call names its episode by the session's header, or by its API key.

    Attributes:
        url: where it answers.
        sandboxes: answers what is asked of `/v1/sandboxes`; None: there are none.
    """

    def __init__(self) -> None:
        self.url = ""
        self.sandboxes: Callable[[web.Request], Awaitable[web.Response]] | None = None
        self._numbers = itertools.count()
        self._rewards: dict[str, list[float]] = {}
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/sessions/{episode}/rewards", self._reward)
        app.router.add_route("*", f"{PATH}{{path:.*}}", self._sandbox)
        app.router.add_post("/v1/{path:.*}", self._post)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

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

    def new_episode(self) -> str:
        """A name that no episode has."""
        return f"{SESSION_PREFIX}audit-{next(self._numbers)}"

    def posted(self, episode: str) -> float | None:
        """The sum of the rewards that an episode's player has posted, None without one."""
        return reward_sum(self._rewards[episode]) if episode in self._rewards else None

    @staticmethod
    def episode_of(request: web.Request) -> str:
        """The episode that a call names; empty if it names none."""
        _, _, key = request.headers.get("authorization", "").rpartition(" ")
        key = request.headers.get("x-api-key", key)
        return request.headers.get(SESSION_HEADER, key)

    async def answer(
        self, request: web.Request, path: str, streams: bool, whole: dict[str, Any]
    ) -> web.StreamResponse:
        """Send an answer, as a stream if it was asked for so."""
        if not streams:
            return web.json_response(whole)
        if path not in STREAMED:
            return refusal(f"an audit's /v1/{path} gives whole answers only: ask without `stream`")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(stream_of(path, whole))
        return response

    async def _post(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async def _sandbox(self, request: web.Request) -> web.Response:
        if self.sandboxes is None:
            raise web.HTTPNotFound
        return await self.sandboxes(request)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "audit", "object": "model"}]})

    async def _reward(self, request: web.Request) -> web.Response:
        reward = float((await request.json())["reward"])
        episode = request.match_info["episode"]
        self._rewards.setdefault(episode, []).append(reward)
        return web.json_response({"id": episode, "object": "session", "reward": reward})


def refusal(why: str) -> web.Response:
    """An error that no client asks again about."""
    return web.json_response({"error": {"message": why}}, status=400)
