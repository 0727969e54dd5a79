"""A server on loopback that asks another one, and remembers what was said."""

import argparse
import itertools
import os
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Self

import httpx
from aiohttp import web

from millrace_tools.deploy.run_file import read_run_file
from services.protocol.errors import InvalidInput
from services.protocol.router import SESSION_HEADER

_ANSWER_S, _SHOWN = 600.0, 300
_UNKNOWN = (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY)


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
        return (self.answered or {"choices": [{}]})["choices"][0]


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
        self._there, self._model = url.rstrip("/"), model
        self._headers = {"authorization": f"Bearer {api_key}"}
        self._ids: dict[str, Any] = {"return_token_ids": True}
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

    async def max_model_len(self) -> int | None:
        """Tokens of prompt and answer; None if the server does not say."""
        try:
            answer = await self._http.get(f"{self._there}/v1/models", headers=self._headers)
            (found,) = [one for one in answer.json()["data"] if one["id"] == self._model]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return found.get("max_model_len")

    async def _pass(self, request: web.Request) -> web.Response:
        body = await request.json() | {"model": self._model, "stream": False}
        body.pop("stream_options", None)
        asked = body.get("messages") or [{"role": "user", "content": str(body.get("prompt"))}]
        own = self.exchanges[request.headers.get(SESSION_HEADER, "")]
        answered: dict[str, Any] | None = None
        try:
            answer = await self._answered(request.match_info["rest"], body)
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


def check_server(arguments: argparse.Namespace) -> None:
    """Look at `--url` and `--key-env` before anything is played.

    Raises:
        InvalidInput: it is no URL, or the variable is not set.
    """
    if not arguments.url.startswith(("http://", "https://")):
        raise InvalidInput("--url", arguments.url, "It begins with http:// or https://.")
    if arguments.key_env is not None and arguments.key_env not in os.environ:
        fix = "There is no such environment variable."
        raise InvalidInput("--key-env", arguments.key_env, fix)


def forwarded(arguments: argparse.Namespace) -> ForwardedPolicy:
    """The server that `--url`, `--model` and `--key-env` name; see `check_server`."""
    check_server(arguments)
    model = arguments.model or read_run_file(arguments.run_file).model
    key = os.environ[arguments.key_env] if arguments.key_env else "none"
    return ForwardedPolicy(arguments.url, model, key)
