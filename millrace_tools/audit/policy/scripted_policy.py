"""An OpenAI-compatible server on loopback whose answers a script chooses."""

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from millrace_tools.audit.policy.episode_server import EpisodeServer, Heard, refusal
from millrace_tools.audit.policy.wire_formats import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    asked_in,
    written,
)

Script = Callable[[Sequence[dict[str, Any]]], str]
"""The answer to a conversation; raises `Refuse` for a server that fails."""

_MODEL = "scripted"


class Refuse(Exception):
    """The server answers with status 400, which no client asks again."""


class ScriptedPolicy(EpisodeServer):
    """Answers chats, completions, Responses and Messages; use it as an async context."""

    def __init__(self) -> None:
        super().__init__()
        self._scripts: dict[str, Script] = {}
        self._heard: dict[str, Heard] = {}

    def begin(self, script: Script) -> str:
        """The name of a new episode, whose calls this script answers."""
        episode = self.new_episode()
        self._scripts[episode], self._heard[episode] = script, Heard(0, "", None)
        return episode

    def heard(self, episode: str) -> Heard:
        """What has been said in an open episode."""
        found = self._heard[episode]
        return Heard(found.calls, found.said, self.posted(episode))

    def end(self, episode: str) -> None:
        """The episode may make no more calls."""
        del self._scripts[episode], self._heard[episode]
        self._rewards.pop(episode, None)

    def say(self, episode: str, messages: list[dict[str, Any]]) -> str:
        """The answer to a call.

        Raises:
            Refuse: there is none.
        """
        if episode not in self._scripts:
            raise web.HTTPNotFound(text="no such episode")
        calls, said = self._heard[episode].calls + 1, ""
        try:
            said = self._scripts[episode](messages)
        finally:
            self._heard[episode] = Heard(calls, said, None)
        return said

    async def _post(self, request: web.Request) -> web.StreamResponse:
        path, body = request.match_info["path"], await request.json()
        if path not in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
            raise web.HTTPNotFound
        try:
            said = self.say(self.episode_of(request), asked_in(path, body))
        except Refuse:
            return refusal("refused on purpose")
        whole = written(path, said, _MODEL)
        return await self.answer(request, path, bool(body.get("stream")), whole)
