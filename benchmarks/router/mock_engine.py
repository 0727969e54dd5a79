"""An engine that costs next to nothing: it speaks vLLM's routes, with answers made before.

    python -m benchmarks.router.mock_engine --port 8001 --token-s 0.5

Every answer has as many tokens as were asked for, one each `--token-s` seconds. A request is
found by its length and its path, a chunk is bytes that exist already, and one timer serves
all streams of a slot of time: thousands of open streams take a few per cent of a core.
"""

import asyncio
import json
from collections import deque
from typing import Any, cast

import uvloop

from benchmarks.report import options_of
from services.protocol.rollout_server import RENDER_AND_GENERATE as _PATH
from services.rollout_server.engine.parent_death import die_with_parent

MODEL = "mock"
VERSION = "3"
RENDER_AND_GENERATE = _PATH.encode()
LONGEST = 4096
SLOT_S = 0.01
_PROMPT = list(range(32))
_JSON = "application/json"


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(body: dict[str, Any]) -> bytes:
    return _chunked(b"data: " + json.dumps(body).encode() + b"\n\n")


def _generated(end: int, tokens: int, last: bool) -> dict[str, Any]:
    entry = {"token": " word", "logprob": -1.25, "bytes": [32, 119, 111, 114, 100]}
    choice = {
        "index": 0,
        "token_ids": [17] * tokens,
        "text": " word" * tokens,
        "logprobs": {"content": [{**entry, "top_logprobs": [entry]}] * tokens},
        "finish_reason": "length" if last else None,
        "stop_reason": None,
        "weight_versions": [{"version": VERSION, "start": 0, "end": end}],
    }
    return {"request_id": "x", "choices": [choice], "usage": None}


def _chat_event(last: bool) -> bytes:
    choice = {
        "index": 0,
        "delta": {"content": " word"},
        "logprobs": None,
        "finish_reason": "length" if last else None,
        "token_ids": None,
    }
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return _event({**frame, "choices": [choice]})


_END = _chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
GENERATED = [_event(_generated(at + 1, 1, False)) for at in range(LONGEST)]
SAID, SAID_LAST = _chat_event(False), _chat_event(True)


class Stream:
    """One answer on its way.

    Args:
        transport: to the client.
        tokens: of the whole answer.
        interval: tokens in a chunk of generate's after the first; None for a chat's chunks.
        first: what comes before the first token.
    """

    def __init__(
        self, transport: asyncio.Transport, tokens: int, interval: int | None, first: bytes = b""
    ) -> None:
        self._transport, self._tokens, self._interval = transport, tokens, interval
        self._made = self._said = 0
        transport.write(_HEAD + first)

    def step(self) -> bool:
        """Make one token; False when that was the last or nobody listens."""
        if self._transport.is_closing():
            return False
        self._made += 1
        last, new = self._made == self._tokens, self._made - self._said
        if not last and self._made > 1 and new < (self._interval or 1):
            return True
        self._said = self._made
        if self._interval is None:
            chunk = SAID_LAST if last else SAID
        elif last or new > 1:
            chunk = _event(_generated(self._made, new, last))
        else:
            chunk = GENERATED[self._made - 1]
        self._transport.write(chunk + _END if last else chunk)
        return not last


class Emitter:
    """Steps all open streams, each once in `token_s`, spread over slots of time."""

    def __init__(self, token_s: float) -> None:
        self._slots: deque[list[Stream]] = deque([] for _ in range(max(1, round(token_s / SLOT_S))))

    def add(self, stream: Stream) -> None:
        """Its first token comes in the next slot."""
        self._slots[0].append(stream)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += SLOT_S
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._slots[0] = [stream for stream in self._slots[0] if stream.step()]
            self._slots.rotate(-1)


class Connection(asyncio.Protocol):
    """Just enough HTTP for clients that send a length with every body."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter, self._buffer = emitter, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, raw: bytes) -> None:
        body = json.loads(raw) if raw else {}
        if path == RENDER_AND_GENERATE:
            tokens, interval = body["body"]["max_tokens"], body["interval"]
            params = {"max_tokens": tokens, "temperature": 1.0, "stream_interval": interval}
            request = {"token_ids": _PROMPT, "sampling_params": params, "model": MODEL}
            streams = interval is None or tokens > interval
            first = {"request": {**request, "request_id": "x", "stream": streams}}
            if not streams:
                self._whole({**first, **_generated(tokens, tokens, True)})
                return
            self._emitter.add(Stream(self._transport, tokens, interval or 1, _event(first)))
        elif path == b"/v1/chat/completions":
            self._emitter.add(Stream(self._transport, body["max_tokens"], None))
        elif path == b"/v1/models":
            self._whole({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._whole({})

    def _whole(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {_JSON}\r\ncontent-length: {len(data)}\r\n\r\n"
        self._transport.write(head.encode() + data)


async def serve(port: int, token_s: float) -> None:
    """Serve until killed."""
    emitter = Emitter(token_s)
    die_with_parent()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(emitter), "127.0.0.1", port, backlog=4096)
    await emitter.run()


def main() -> None:
    """Read the command line and serve."""
    options = options_of(__doc__, port=int, token_s=(0.5, "seconds for each token")).parse_args()
    uvloop.run(serve(options.port, options.token_s))


if __name__ == "__main__":
    main()
