"""What of two answers a client can compare."""

import json
from typing import Any

import httpx
import pytest

_OF_THIS_ANSWER = ("id", "created", "system_fingerprint", "metrics")
"""Made anew for each answer, or naming the build of the server."""

_UNKNOWN = "prompt_tokens_details"
"""How many of a prompt were cached depends on who asked first; a test of its own looks at it."""


def comparable(response: httpx.Response) -> tuple[Any, ...]:
    """Status and body of an answer, reduced to what two servers must agree on."""
    if response.status_code >= 400:
        # The router may say more than vLLM in the message, but no other kind of error.
        error = response.json()["error"]
        return response.status_code, error["type"], error["code"]
    kind = response.headers["content-type"].split(";")[0]
    if kind == "text/event-stream":
        events = _events(response.text)
        if error := events[0].get("error"):
            # vLLM begins a stream to say that there will be none; the router refuses.
            return error["code"], error["type"], error["code"]
        return response.status_code, kind, _joined(events)
    return response.status_code, kind, _reduced(response.json())


def _events(text: str) -> list[dict[str, Any]]:
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert parts[-1] == "[DONE]", text[-300:]
    return [json.loads(part) for part in parts[:-1]]


def _reduced(value: Any) -> Any:
    """Without what may differ; absent, null and empty are the same to a client."""
    if isinstance(value, dict):
        kept = {
            name: _reduced(part)
            for name, part in value.items()
            if name not in _OF_THIS_ANSWER and name != _UNKNOWN
        }
        return {name: part for name, part in kept.items() if part not in (None, [], "")}
    if isinstance(value, list):
        return [_reduced(part) for part in value]
    # Requests meet in other batches here than there, which moves the last digits.
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


def _joined(events: list[dict[str, Any]]) -> Any:
    """A stream as one answer: where its chunks end depends on the moment, at vLLM too."""
    whole: dict[str, Any] = {"choices": {}, "counted": []}
    for event in events:
        if "error" in event:
            return event["error"]["type"], event["error"]["code"]
        usage = event.pop("usage", None)
        whole["counted"].append(usage is not None)
        for choice in event.pop("choices"):
            _join_choice(whole["choices"].setdefault(choice["index"], {}), choice)
        whole |= {name: value for name, value in event.items() if value is not None}
        whole |= {"usage": usage} if usage else {}
    for choice in whole["choices"].values():
        if "reasoning" in choice:
            # On a busy machine vLLM sends several tokens at once, and its parser leaves a mark in.
            choice["reasoning"] = choice["reasoning"].replace("<think>", "")
        for call in choice.get("tool_calls", {}).values() if _is_cut_off(choice) else ():
            # vLLM adds them to a call that is cut off, if its last chunk holds some of the call.
            call["arguments"] = call["arguments"].removesuffix("{}")
    # How many events there are depends on the moment; whether all, or the last, count does not.
    whole["counted"] = sorted(set(whole["counted"]))
    return _reduced(whole)


def _is_cut_off(choice: dict[str, Any]) -> bool:
    return choice.get("finish_reason") == "length"


def _join_choice(known: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.pop("delta", {})
    for call in delta.pop("tool_calls", None) or []:
        calls = known.setdefault("tool_calls", {})
        called = calls.setdefault(call["index"], {"name": "", "arguments": ""})
        called["name"] += call["function"].get("name") or ""
        called["arguments"] += call["function"].get("arguments") or ""
    for name, value in (choice | delta).items():
        if isinstance(value, str | list) and name not in ("role", "finish_reason", "stop_reason"):
            known[name] = known.get(name, type(value)()) + value
        elif isinstance(value, dict):
            _join_choice(known.setdefault(name, {}), value)
        elif value is not None:
            known[name] = value
