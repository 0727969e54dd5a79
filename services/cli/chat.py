"""`millrace chat`: talk to the served model through the OpenAI API, like any client."""

from typing import TYPE_CHECKING

from rich.console import Console

from services.protocol.errors import InvalidInput, NotReady

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionChunk

_TIMEOUT_S = 120.0


def chat(url: str, model: str | None, message: str | None, console: Console) -> None:
    """Answer one message, or, without one, a conversation typed line by line.

    Raises:
        InvalidInput: nothing answers, or no such model is served.
        NotReady: the router refuses or fails.
    """
    # Half a second of imports that no other command needs.
    import openai

    client = openai.OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key="none", timeout=_TIMEOUT_S)
    try:
        served = [entry.id for entry in client.models.list()]
        chosen = _chosen(model, served)
        if message is not None:
            _answer(client, chosen, [{"role": "user", "content": message}], console)
        else:
            _converse(client, chosen, console)
    except openai.APIConnectionError:
        fix = "Nothing answers there. Start the services first: `serve run deploy/laptop.yaml`."
        raise InvalidInput("--url", url, fix) from None
    except openai.APIStatusError as error:
        raise NotReady(f"the router answered {error.status_code}: {error.message}") from None
    finally:
        client.close()


def _chosen(model: str | None, served: list[str]) -> str:
    if not served:
        raise NotReady("no replica holds a lease, so no model is served yet; try again shortly")
    if model is None:
        return served[0]
    if model not in served:
        raise InvalidInput("--model", model, f"Served now: {', '.join(served)}.")
    return model


def _converse(client: "OpenAI", model: str, console: Console) -> None:
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = console.input("[bold]> [/]").strip()
        except EOFError:
            return
        if line:
            messages.append({"role": "user", "content": line})
            answer = _answer(client, model, messages, console)
            messages.append({"role": "assistant", "content": answer})


def _answer(client: "OpenAI", model: str, messages: list[dict[str, str]], console: Console) -> str:
    parts: list[str] = []
    stream = client.chat.completions.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]  # plain dicts are accepted
        stream=True,
    )
    event: ChatCompletionChunk
    for event in stream:  # type: ignore[assignment]
        text = event.choices[0].delta.content if event.choices else None
        if text:
            parts.append(text)
            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    return "".join(parts)
