"""`millrace chat`: talk to the served model through the OpenAI API, like any client."""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from millrace_tools.client.services_url import (
    API_KEY,
    STARTING,
    nothing_answers,
    split_url,
    unknown_path,
)
from millrace_tools.command import SERVICES_URL, command, option
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput, NotReady

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionChunk

_TIMEOUT_S = 120.0
TOO_LONG = "maximum context length"  # in vLLM's message; the error has no code of its own

Message = dict[str, str]


class _TooLong(Exception):
    """The messages do not fit into the model's context."""


@command(
    "chat",
    SERVICES_URL,
    option("message", nargs="?", help="one message; without it a conversation"),
    option("--model", help="served model name (the first one)"),
    option("--temperature", type=float, help="0 for the likeliest answer"),
    option("--max-tokens", type=int, help="longest answer (what fits)"),
)
def chat(arguments: argparse.Namespace, console: Console) -> int:
    """Talk to the served model.

    Raises:
        InvalidInput: the URL cannot be used, no such model is served, or the message is too long.
        NotReady: the router refuses or fails.
    """
    split_url(arguments.url)
    # Half a second of imports that no other command needs.
    import openai

    try:
        with openai.OpenAI(
            base_url=f"{arguments.url.rstrip('/')}/v1",
            api_key=os.environ.get(API_KEY) or "none",
            timeout=_TIMEOUT_S,
            # The services are in this network: no proxy of the environment leads there.
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as client:
            conversation = _Conversation(client, arguments, console)
            if arguments.message is None:
                conversation.converse()
            else:
                conversation.say_once(arguments.message)
    except openai.APITimeoutError:
        raise NotReady(f"the router has not answered in {_TIMEOUT_S:g} s") from None
    except openai.APIConnectionError:
        raise nothing_answers(arguments.url) from None
    except openai.APIStatusError as error:
        raise NotReady(f"the router answered {error.status_code}: {error.message}") from None
    except openai.APIError as error:  # in the middle of a stream
        raise NotReady(f"the answer broke off: {error.message}") from None
    return 0


class _Conversation:
    def __init__(self, client: "OpenAI", arguments: argparse.Namespace, console: Console) -> None:
        self._client, self._console = client, console
        self._model = _model(client, arguments)
        sampling = {"temperature": arguments.temperature, "max_tokens": arguments.max_tokens}
        self._sampling = {name: value for name, value in sampling.items() if value is not None}

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
        """The answer to the last message; earlier messages are dropped if all do not fit."""
        while history:
            try:
                return self._answer(history)
            except _TooLong as error:
                if len(history) == 1:
                    print_line(f"This message is too long: {error}", self._console, "dim")
                    history.clear()
                else:
                    note = "The conversation is too long for the model; it starts afresh."
                    print_line(note, self._console, "dim")
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
                **self._sampling,
            )
        except openai.BadRequestError as error:
            if TOO_LONG in error.message:
                raise _TooLong(error.message) from None
            raise
        event: ChatCompletionChunk
        for event in stream:
            text = event.choices[0].delta.content if event.choices else None
            if text:
                parts.append(text)
                self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        self._console.print()
        return "".join(parts)


def _model(client: "OpenAI", arguments: argparse.Namespace) -> str:
    """The model of the command line, or the first one that is served."""
    import openai

    try:
        served = [entry.id for entry in client.models.list()]
    except openai.NotFoundError:
        raise unknown_path(arguments.url, "/v1/models", "router") from None
    if not served:
        raise NotReady(f"no replica holds a lease, so no model is served yet: {STARTING}")
    model: str = arguments.model or served[0]
    if model not in served:
        raise InvalidInput("--model", model, f"Served now: {', '.join(served)}.")
    return model


def _lines(console: Console) -> Iterator[str]:
    """Lines that a user types after a prompt, or that a pipe has, without one."""
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
