"""A server on loopback that asks another one, and remembers what was said."""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from aiohttp import web

from millrace_tools.audit.endpoint import check_server
from millrace_tools.audit.policy.episode_server import EpisodeServer, Heard, refusal
from millrace_tools.audit.policy.wire_formats import asked_in, said_in, with_aside
from millrace_tools.deploy.run_file import read_run_file

_ANSWER_S, _SHOWN = 600.0, 300
_UNKNOWN = (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY)


@dataclass(frozen=True)
class Exchange:
    """One call of an episode.

    Attributes:
        asked: the conversation, or the prompt.
        answered: the whole answer, as JSON; None if it was an error.
        problem: status and words of an error, empty if there was none.
        seconds: from the call to its answer.
    """

    asked: list[dict[str, Any]]
    answered: dict[str, Any] | None
    problem: str
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """The text of the answer."""
        return said_in(self.answered or {})

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt; empty if the server returns none."""
        return (self.answered or {}).get("prompt_token_ids") or []

    @property
    def ids(self) -> list[int]:
        """Token ids of the prompt and its answer; empty if the server returns none."""
        sampled = self._choice.get("token_ids")
        return [*self.prompt_ids, *sampled] if self.prompt_ids and sampled else []

    @property
    def sampled(self) -> int:
        """Tokens of the answer, as the server counts them; 0 if it does not."""
        usage = (self.answered or {}).get("usage") or {}
        return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)

    @property
    def end(self) -> int:
        """How many these are."""
        return len(self.ids)

    @property
    def finish_reason(self) -> str:
        """Of the answer."""
        return str(self._choice.get("finish_reason"))

    @property
    def thinks(self) -> bool:
        """Whether the answer has thoughts before its text."""
        message = self._choice.get("message") or {}
        written = "</think>" in str(message.get("content"))
        return written or bool(message.get("reasoning") or message.get("reasoning_content"))

    def goes_on_from(self, other: "Exchange") -> bool:
        """Whether its messages begin with those of another call, and an answer to them."""
        count = len(other.asked)
        begins = self.asked[:count] == other.asked and len(self.asked) > count
        return begins and self.asked[count].get("role") == "assistant"

    @property
    def _choice(self) -> dict[str, Any]:
        return ((self.answered or {}).get("choices") or [{}])[0]


class ForwardedPolicy(EpisodeServer):
    """Passes calls on, whole answers only; use it as an async context.

    Args:
        url: base URL of an OpenAI-compatible server, without `/v1`.
        model: replaces the model that a call names.
        api_key: that the server asks for.

    Attributes:
        exchanges: of each episode, in order.
    """

    def __init__(self, url: str, model: str, api_key: str) -> None:
        super().__init__()
        self.exchanges: dict[str, list[Exchange]] = defaultdict(list)
        self._there, self._model = url.rstrip("/"), model
        self._headers = {"authorization": f"Bearer {api_key}"}
        self._ids: dict[str, Any] = {"return_token_ids": True}
        self._asides: dict[str, str] = {}
        self._recorded: dict[str, Sequence[Exchange]] = {}
        self._http = httpx.AsyncClient(trust_env=False, timeout=_ANSWER_S)

    async def __aexit__(self, *exc: object) -> None:
        """Stop listening."""
        await super().__aexit__(*exc)
        await self._http.aclose()

    def begin(self, script: "str | Sequence[Exchange] | None" = None) -> str:
        """The name of a new episode.

        Args:
            script: a text is added to the last words of a user in each call; recorded exchanges
                are answered again, and the server is not asked.
        """
        episode = self.new_episode()
        if isinstance(script, str):
            self._asides[episode] = script
        elif script is not None:
            self._recorded[episode] = script
        return episode

    def heard(self, episode: str) -> Heard:
        """What has been said in an episode."""
        exchanges = self.exchanges[episode]
        said = exchanges[-1].said if exchanges else ""
        return Heard(len(exchanges), said, self.posted(episode))

    def end(self, episode: str) -> None:
        """Its exchanges stay."""

    async def max_model_len(self) -> int | None:
        """Tokens of prompt and answer; None if the server does not say."""
        try:
            answer = await self._http.get(f"{self._there}/v1/models", headers=self._headers)
            (found,) = [one for one in answer.json()["data"] if one["id"] == self._model]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return found.get("max_model_len")

    async def _post(self, request: web.Request) -> web.StreamResponse:
        path, sent = request.match_info["path"], await request.json()
        episode = self.episode_of(request)
        body = sent | {"model": self._model, "stream": False}
        body.pop("stream_options", None)
        began = time.monotonic()
        if episode in self._recorded:
            answered, problem = self._again(episode)
        else:
            answered, problem = await self._told(path, with_aside(body, self._asides.get(episode)))
        seconds = time.monotonic() - began
        self.exchanges[episode].append(Exchange(asked_in(path, body), answered, problem, seconds))
        if answered is not None:
            return await self.answer(request, path, bool(sent.get("stream")), answered)
        # Shown at once: clients ask again for minutes when a server is busy.
        return refusal(problem)

    def _again(self, episode: str) -> tuple[dict[str, Any] | None, str]:
        """The recorded answer to the episode's next call, or why there is none."""
        recorded, number = self._recorded[episode], len(self.exchanges[episode])
        if number >= len(recorded):
            return None, "the recorded episode had no such call"
        return recorded[number].answered, recorded[number].problem

    async def _told(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """The server's answer, or why there is none."""
        try:
            answer = await self._answered(path, body)
            if answer.status_code == httpx.codes.OK:
                return answer.json(), ""
            return None, f"{answer.status_code}: {answer.text[:_SHOWN]}"
        except (httpx.HTTPError, ValueError) as error:
            return None, f"{type(error).__name__}: {error}"

    async def _answered(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The answer with its token ids, if the server takes the parameter."""
        url = f"{self._there}/v1/{path}"
        answer = await self._http.post(url, json=body | self._ids, headers=self._headers)
        if self._ids and answer.status_code in _UNKNOWN:
            plain = await self._http.post(url, json=body, headers=self._headers)
            if plain.status_code == httpx.codes.OK:
                self._ids = {}
            return plain
        return answer


def forwarded(arguments: argparse.Namespace) -> ForwardedPolicy:
    """The server that `--url`, `--model` and `--key-env` name.

    Raises:
        InvalidInput: see `check_server`.
    """
    check_server(arguments)
    model = arguments.model or read_run_file(arguments.run_file).model
    key = os.environ[arguments.key_env] if arguments.key_env else "none"
    return ForwardedPolicy(arguments.url, model, key)
