"""`millrace chat`: talk to the served model through the OpenAI API, like any client."""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from millrace_tools.client.absence import STARTING, nobody, unknown_path
from millrace_tools.client.api_key import API_KEY
from millrace_tools.command import SERVED, Commands, declare
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput, NotReady

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionChunk

_TIMEOUT_S = 120.0
TOO_LONG = "maximum context length"  # vLLM's words; it gives no code of its own

Message = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """What the command line chose.

    Attributes:
        url: where the router answers.
        model: served model name, None for the first one.
        temperature: None for the server's default.
        max_tokens: longest answer, None for what fits.
    """

    url: str
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """What is sent with every request."""
        chosen = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in chosen.items() if value is not None}


class _TooLong(Exception):
    """The messages do not fit into the model's context."""


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(commands, "chat", chat_command, "talk to the served model", SERVED)
    parser.add_argument("message", nargs="?", help="one message; without it a conversation")
    parser.add_argument("--model", help="served model name (the first one)")
    parser.add_argument("--temperature", type=float, help="0 for the likeliest answer")
    parser.add_argument("--max-tokens", type=int, help="longest answer (what fits)")


def chat_command(arguments: argparse.Namespace, console: Console) -> int:
    """Talk to the served model."""
    options = ChatOptions(
        url=arguments.url,
        model=arguments.model,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
    )
    chat(options, arguments.message, console)
    return 0


def chat(options: ChatOptions, message: str | None, console: Console) -> None:
    """Answer one message, or, without one, a conversation typed line by line.

    Raises:
        InvalidInput: nothing answers, no such model is served, or the message is too long.
        NotReady: the router refuses or fails.
    """
    # Half a second of imports that no other command needs.
    import openai

    base_url = f"{options.url.rstrip('/')}/v1"
    try:
        key = os.environ.get(API_KEY) or "none"
        # The services are this network's own: no proxy of the environment leads there.
        http = openai.DefaultHttpxClient(trust_env=False)
        with openai.OpenAI(
            base_url=base_url, api_key=key, timeout=_TIMEOUT_S, http_client=http
        ) as client:
            talk = _Talk(client, options, console)
            if message is None:
                talk.converse()
            else:
                talk.say_once(message)
    except openai.APITimeoutError:
        raise NotReady(f"the router has not answered in {_TIMEOUT_S:g} s") from None
    except openai.APIConnectionError:
        raise nobody(options.url) from None
    except openai.APIStatusError as error:
        raise NotReady(f"the router answered {error.status_code}: {error.message}") from None
    except openai.APIError as error:  # in the middle of a stream
        raise NotReady(f"the answer broke off: {error.message}") from None


class _Talk:
    def __init__(self, client: "OpenAI", options: ChatOptions, console: Console) -> None:
        self._client = client
        self._options = options
        self._console = console
        self._model = _chosen(options.model, _served(client, options.url))

    def say_once(self, message: str) -> None:
        try:
            self._answer([_from_user(message)])
        except _TooLong as error:
            raise InvalidInput("message", message, f"It is too long: {error}") from None

    def converse(self) -> None:
        history: list[Message] = []
        for line in _lines(self._console):
            history.append(_from_user(line))
            answer = self._answer_what_fits(history)
            if answer is not None:
                history.append({"role": "assistant", "content": answer})

    def _answer_what_fits(self, history: list[Message]) -> str | None:
        """The answer to the last message; earlier ones are forgotten if they are in the way."""
        while history:
            try:
                return self._answer(history)
            except _TooLong as error:
                if len(history) == 1:
                    self._note(f"This message is too long: {error}")
                    history.clear()
                else:
                    self._note("The conversation is too long for the model; it starts afresh.")
                    del history[:-1]
        return None

    def _answer(self, messages: list[Message]) -> str:
        import openai

        parts: list[str] = []
        try:
            stream = self._client.chat.completions.create(
                model=self._model,
                messages=messages,  # type: ignore[arg-type]  # plain dicts are accepted
                stream=True,
                **self._options.sampling,
            )
        except openai.BadRequestError as error:
            if TOO_LONG in error.message:
                raise _TooLong(error.message) from None
            raise
        event: ChatCompletionChunk
        for event in stream:  # type: ignore[assignment]
            text = event.choices[0].delta.content if event.choices else None
            if text:
                parts.append(text)
                self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        self._console.print()
        return "".join(parts)

    def _note(self, text: str) -> None:
        print_line(text, self._console, style="dim")


def _served(client: "OpenAI", url: str) -> list[str]:
    import openai

    try:
        return [entry.id for entry in client.models.list()]
    except openai.NotFoundError:
        raise unknown_path(url, "/v1/models", "router") from None


def _chosen(model: str | None, served: list[str]) -> str:
    if not served:
        raise NotReady(f"no replica holds a lease, so no model is served yet: {STARTING}")
    if model is None:
        return served[0]
    if model not in served:
        raise InvalidInput("--model", model, f"Served now: {', '.join(served)}.")
    return model


def _lines(console: Console) -> Iterator[str]:
    """What is typed, after a prompt, or what comes through a pipe, without one."""
    prompt = "[bold]> [/]" if sys.stdin.isatty() else ""
    while True:
        try:
            line = console.input(prompt).strip()
        except EOFError:
            return
        if line:
            yield line


def _from_user(text: str) -> Message:
    return {"role": "user", "content": text}
