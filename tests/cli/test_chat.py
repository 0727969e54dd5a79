"""`millrace chat` against an HTTP server that stands in for the router."""

import io
import json
import sys
from typing import Any

import pytest

from millrace_tools.main import main
from tests.cli.conftest import Orchestra, Reply

CHAT = ("POST", "/v1/chat/completions")


@pytest.fixture
def router(orchestra: Orchestra) -> Orchestra:
    """It serves the model `m`, which answers `fine`."""
    model = {"id": "m", "object": "model", "created": 0, "owned_by": "millrace"}
    orchestra.replies["GET", "/v1/models"] = (200, {"object": "list", "data": [model]})
    orchestra.replies[CHAT] = _answer("fine")
    return orchestra


def _answer(*texts: str) -> Reply:
    pieces = [
        {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [
            {"index": 0, "delta": {"content": text}, "finish_reason": None}
        ]}
        for text in texts
    ]  # fmt: skip
    return 200, "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"


def _too_long() -> Reply:
    message = (
        "This model's maximum context length is 256 tokens. However, your prompt contains at "
        "least 257 input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    error = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
    return 400, {"error": error}


def _pipe(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def _contents(router: Orchestra) -> list[list[str]]:
    return [[message["content"] for message in body["messages"]] for _, body in router.posted]


@pytest.mark.parametrize("command", [["chat", "a"], ["status"]])
def test_a_proxy_of_the_environment_is_not_asked(
    command: list[str], router: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert main([*command, "--url", router.url]) == 0


def test_chat_streams_what_the_served_model_says(
    router: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    router.replies[CHAT] = _answer("return ", "[b]a[/b]")
    assert main(["chat", "a", "--url", router.url]) == 0
    assert capsys.readouterr().out == "return [b]a[/b]\n"
    body = router.posted[0][1]
    assert body["messages"] == [{"role": "user", "content": "a"}]
    assert not {"temperature", "max_tokens"} & body.keys(), "the server has its own"
    assert main(["chat", "a", "--model", "other", "--url", router.url]) == 2


def test_temperature_and_length_are_passed_on(router: Orchestra) -> None:
    options = ["--temperature", "0", "--max-tokens", "7"]
    assert main(["chat", "a", *options, "--url", router.url]) == 0
    body = router.posted[0][1]
    assert (body["temperature"], body["max_tokens"]) == (0.0, 7)


def test_a_piped_conversation_is_kept_and_shows_no_prompts(
    router: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pipe(monkeypatch, "one", "", "two")
    assert main(["chat", "--url", router.url]) == 0
    assert capsys.readouterr().out == "fine\nfine\n"
    assert _contents(router) == [["one"], ["one", "fine", "two"]]


def test_a_conversation_that_is_too_long_starts_afresh(
    router: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    router.replies[CHAT] = [_answer("fine"), _too_long(), _answer("again")]
    _pipe(monkeypatch, "one", "two", "three")
    assert main(["chat", "--url", router.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "fine",
        "The conversation is too long for the model; it starts afresh.",
        "again",
        "again",
    ]
    assert _contents(router)[2:] == [["two"], ["two", "again", "three"]]


def test_a_message_that_is_too_long_alone_does_not_end_the_conversation(
    router: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    router.replies[CHAT] = [_too_long(), _answer("fine")]
    _pipe(monkeypatch, "endless", "short")
    assert main(["chat", "--url", router.url]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("This message is too long: ")
    assert "256 tokens" in first
    assert second == "fine"
    assert _contents(router) == [["endless"], ["short"]]


def test_one_message_that_is_too_long_is_an_error(
    router: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    router.replies[CHAT] = _too_long()
    assert main(["chat", "endless", "--url", router.url]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: message: 'endless' -> It is too long: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("body", [{"object": "list", "data": []}, "Path '/v1/models' not found."])
def test_chat_says_that_the_services_are_still_starting(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str], body: Any
) -> None:
    orchestra.replies["GET", "/v1/models"] = (404 if isinstance(body, str) else 200, body)
    orchestra.replies["GET", "/-/routes"] = (200, {"/v1/runs": "orchestrator"})
    assert main(["chat", "a", "--url", orchestra.url]) == 1
    assert "the services are still starting: run `millrace wait`" in capsys.readouterr().err


def test_another_server_on_that_port_is_recognised(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "a", "--url", orchestra.url]) == 2
    assert "has no /v1/models: is the router deployed?" in capsys.readouterr().err


def test_nothing_listening_is_one_clear_line(
    closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "a", "--url", closed_url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --url: '{closed_url}' -> Nothing answers there.")


def test_an_address_that_is_no_url_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "a", "--url", "http://localhost:8000:"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --url: 'http://localhost:8000:' -> It is not a URL: ")
