"""A replica dies in the middle of a stream of every API; clients with API keys do not notice."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from rich.console import Console

from services.protocol.router import REPLICA_HEADER, SESSION_HEADER
from tests.cluster.conftest import MODEL_NAME, READY_S, ROUTER_KEY, Cluster

LONG = 900
ASK: Any = [{"role": "user", "content": "a plus b, minus c"}]
DEADLINE_S = 300.0
SESSION = {SESSION_HEADER: "all-doors"}
"""Calls of one session go to one replica."""
NO_END = {"ignore_eos": True}
Opened = tuple[Mapping[str, str], Iterable[Any]]
"""Headers of an answer, and the events of its stream as its client has them."""


@pytest.fixture
def keyed(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster while its router asks for keys."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- {{name: alice, key: {ROUTER_KEY}}}\n")
    content = deepcopy(cluster.content)
    (router,) = (one for one in content["applications"] if one["name"] == "router")
    router["args"]["access"] = {"api_keys_file": str(keys)}
    try:
        deploy(cluster, content, refusing=True)
        yield cluster
    finally:
        deploy(cluster, cluster.content, refusing=False)


def deploy(cluster: Cluster, content: Any, *, refusing: bool) -> None:
    """Until the router of before has left the port."""
    cluster.private.deploy(content, Console(quiet=True), timeout_s=READY_S, changing=True)

    def replaced() -> bool:
        try:
            answer = httpx.get(f"{cluster.url}/v1/models", timeout=DEADLINE_S)
        except httpx.TransportError:
            return False
        return answer.status_code == (401 if refusing else 200)

    cluster.wait_for(replaced, f"a router that {'asks' if refusing else 'does not ask'} for keys")


@dataclass(frozen=True)
class Clients:
    """Of one router, with a key and without retries."""

    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    http: httpx.Client

    @classmethod
    def of(cls, url: str) -> "Clients":
        shown: Any = {"api_key": ROUTER_KEY, "max_retries": 0, "timeout": DEADLINE_S}
        key = {"authorization": f"Bearer {ROUTER_KEY}"}
        return cls(
            openai=openai.OpenAI(base_url=f"{url}/v1", **shown),
            anthropic=anthropic.Anthropic(base_url=url, **shown),
            http=httpx.Client(base_url=url, headers=key, timeout=DEADLINE_S),
        )


def chat(clients: Clients, tokens: int) -> Opened:
    raw = clients.openai.chat.completions.with_raw_response.create(
        model=MODEL_NAME,
        messages=ASK,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=SESSION,
        extra_body=NO_END,
    )
    return raw.headers, raw.parse()


def completions(clients: Clients, tokens: int) -> Opened:
    raw = clients.openai.completions.with_raw_response.create(
        model=MODEL_NAME,
        prompt="a",
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=SESSION,
        extra_body=NO_END,
    )
    return raw.headers, raw.parse()


def responses(clients: Clients, tokens: int) -> Opened:
    raw = clients.openai.responses.with_raw_response.create(
        model=MODEL_NAME,
        input=ASK,
        max_output_tokens=tokens,
        stream=True,
        extra_headers=SESSION,
        extra_body=NO_END,
    )
    return raw.headers, raw.parse()


def messages(clients: Clients, tokens: int) -> Opened:
    raw = clients.anthropic.messages.with_raw_response.create(
        model=MODEL_NAME,
        messages=ASK,
        max_tokens=tokens,
        stream=True,
        extra_headers=SESSION,
        # It has no way to go on behind the end of an answer.
        extra_body={"output_config": {"format": LIST}},
    )
    return raw.headers, raw.parse()


def generate(clients: Clients, tokens: int) -> Opened:
    """Its clients have no package of their own."""
    params = {"max_tokens": tokens, **NO_END}
    body = {"model": MODEL_NAME, "token_ids": [5, 6, 7], "sampling_params": params, "stream": True}
    request = clients.http.build_request(
        "POST", "/inference/v1/generate", json=body, headers=SESSION
    )
    answer = clients.http.send(request, stream=True).raise_for_status()

    def events() -> Iterator[Any]:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert not event.get("error"), event
                yield event

    return answer.headers, events()


def _usage(events: list[Any]) -> int:
    return next(one.usage.completion_tokens for one in events[::-1] if one.usage)


def _ids(events: list[Any]) -> int:
    return sum(len(choice["token_ids"]) for one in events for choice in one.get("choices", []))


def _items(events: list[Any]) -> int:
    deltas = (one.delta for one in events if one.type == "content_block_delta")
    found = json.loads("".join(delta.text for delta in deltas if delta.type == "text_delta"))
    return LONG if len(found) == ITEMS else 0


ITEMS = 150
LIST = {
    "type": "json_schema",
    "schema": {"type": "array", "items": {"enum": [1, 2]}, "minItems": ITEMS, "maxItems": ITEMS},
}


@dataclass(frozen=True)
class Door:
    """An API that streams.

    Attributes:
        open: asks for an answer of so many tokens.
        tokens: the count of an answer's tokens, from the events of its stream.
    """

    open: Callable[[Clients, int], Opened]
    tokens: Callable[[list[Any]], int]


DOORS = {
    "chat": Door(chat, _usage),
    "completions": Door(completions, _usage),
    "responses": Door(responses, lambda events: events[-1].response.usage.output_tokens),
    "messages": Door(messages, _items),
    "generate": Door(generate, _ids),
}


class Stream:
    """One open stream; it begins when `replica` is known."""

    def __init__(self, clients: Clients, door: Door, pool: ThreadPoolExecutor) -> None:
        self.replica = ""
        self._clients, self._door, self._begun = clients, door, threading.Event()
        self.tokens = pool.submit(self._read)
        self.tokens.add_done_callback(lambda _: self._begun.set())

    def wait(self) -> None:
        assert self._begun.wait(DEADLINE_S), "no first event"
        assert not self.tokens.done(), f"it ended too early: {self.tokens.exception()}"

    def _read(self) -> int:
        headers, stream = self._door.open(self._clients, LONG)
        self.replica = headers[REPLICA_HEADER]
        events = []
        for event in stream:
            events.append(event)
            self._begun.set()
        return self._door.tokens(events)


def test_a_replicas_death_costs_no_stream_of_any_door(keyed: Cluster) -> None:
    clients = Clients.of(keyed.url)
    for door in DOORS.values():
        _, events = door.open(clients, 4)
        assert list(events), "clients load their types at their first stream"
    with ThreadPoolExecutor(len(DOORS)) as pool:
        streams = {name: Stream(clients, door, pool) for name, door in DOORS.items()}
        for stream in streams.values():
            stream.wait()
        (serving,) = {stream.replica for stream in streams.values()}
        (victim,) = (m.pid for m in keyed.table().members if m.replica_id == serving)
        os.kill(victim, signal.SIGKILL)
        found = {name: stream.tokens.result(DEADLINE_S) for name, stream in streams.items()}
    assert found == dict.fromkeys(DOORS, LONG)
