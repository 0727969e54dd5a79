"""A replica dies in the middle of a stream of every API; the clients do not notice."""

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.cluster.conftest import MODEL_NAME, Cluster

LONG = 600
ASK = [{"role": "user", "content": "a plus b, minus c"}]
DEADLINE_S = 300.0
SESSION = "all-doors"
"""Calls of one session go to one replica."""
Body = dict[str, Any]


@dataclass(frozen=True)
class Door:
    """An API that streams.

    Attributes:
        path: of it.
        body: a request of `LONG` tokens.
        tokens: the count of an answer's tokens, from the events of its stream.
    """

    path: str
    body: Body
    tokens: Callable[[list[Body]], int]


def _usage(events: list[Body]) -> int:
    return next(one["usage"]["completion_tokens"] for one in events[::-1] if one.get("usage"))


def _ids(events: list[Body]) -> int:
    return sum(len(choice["token_ids"]) for one in events for choice in one.get("choices", []))


def _text(events: list[Body]) -> str:
    return "".join(one["delta"].get("text", "") for one in events if "delta" in one)


ITEMS = 100
LIST = {
    "type": "json_schema",
    "schema": {"type": "array", "items": {"enum": [1, 2]}, "minItems": ITEMS, "maxItems": ITEMS},
}
USAGE = {"stream_options": {"include_usage": True}}
DOORS = {
    "chat": Door("/v1/chat/completions", {"messages": ASK, "max_tokens": LONG, **USAGE}, _usage),
    "completions": Door("/v1/completions", {"prompt": "a", "max_tokens": LONG, **USAGE}, _usage),
    "responses": Door(
        "/v1/responses",
        {"input": ASK, "max_output_tokens": LONG},
        lambda events: events[-1]["response"]["usage"]["output_tokens"],
    ),
    "messages": Door(
        "/v1/messages",
        # It has no way to go on behind the end of an answer.
        {"messages": ASK, "max_tokens": LONG, "output_config": {"format": LIST}},
        lambda events: LONG if len(json.loads(_text(events))) == ITEMS else 0,
    ),
    "generate": Door(
        "/inference/v1/generate",
        {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": LONG, "ignore_eos": True}},
        _ids,
    ),
}


class Stream:
    """One open stream; it begins when `replica` is known."""

    def __init__(self, cluster: Cluster, door: Door, pool: ThreadPoolExecutor) -> None:
        self.replica = ""
        self._cluster, self._door, self._begun = cluster, door, threading.Event()
        self.tokens = pool.submit(self._read)
        self.tokens.add_done_callback(lambda _: self._begun.set())

    def wait(self) -> None:
        assert self._begun.wait(DEADLINE_S), "no first event"
        assert not self.tokens.done(), f"it ended too early: {self.tokens.exception()}"

    def _read(self) -> int:
        body = {"model": MODEL_NAME, "stream": True, "ignore_eos": True, **self._door.body}
        if "sampling_params" in body:
            del body["ignore_eos"]
        url = f"{self._cluster.url}{self._door.path}"
        headers = {"x-session-id": SESSION}
        events = []
        with httpx.stream("POST", url, json=body, headers=headers, timeout=DEADLINE_S) as answer:
            if answer.status_code != 200:
                raise AssertionError(answer.read())
            self.replica = answer.headers["x-millrace-replica"]
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                    self._begun.set()
        assert not any("error" in one and one["error"] for one in events), events[-1]
        return self._door.tokens(events)


def test_a_replicas_death_costs_no_stream_of_any_door(cluster: Cluster) -> None:
    with ThreadPoolExecutor(len(DOORS)) as pool:
        streams = {name: Stream(cluster, door, pool) for name, door in DOORS.items()}
        for stream in streams.values():
            stream.wait()
        (serving,) = {stream.replica for stream in streams.values()}
        (victim,) = (m.pid for m in cluster.table().members if m.replica_id == serving)
        os.kill(victim, signal.SIGKILL)
        found = {name: stream.tokens.result(DEADLINE_S) for name, stream in streams.items()}
    assert found == dict.fromkeys(DOORS, LONG)
