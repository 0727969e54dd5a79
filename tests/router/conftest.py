"""A router in this process, against unit-test replicas that render, generate and derender.

The test model is exact: a token is a byte, 256 ends an answer, 300 ends a prompt. What it
says is a function of the prefix, a logprob is a function of prefix and policy version, so
the record of an interrupted answer can be compared with that of an uninterrupted one. Its
chat template writes an earlier answer as it was sampled: between 300 and 256. That of a replica
that `forgets` leaves out what the answer thought, up to `</think>`.
"""

import asyncio
import codecs
import contextlib
import json
import socket
import zlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import httpx
import openai
import pytest
import uvicorn
from aiohttp import web

from services.protocol.rollout_server import HISTORY_DEPENDENT, RENDER_AND_GENERATE
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.router.config import RouterConfig
from services.router.http_app import build_http

Body = dict[str, Any]

ENGINE_ERROR: Body = {
    "error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}
}
"""Of vLLM, when its engine ends one request with an error."""
ODD_ANSWERS: Body = {
    "error_event": {"error": {"message": "engine died", "code": 500}},
    "engine_error": ENGINE_ERROR,
    "refusal_event": {"error": {"message": "no such thing", "code": 422}},
    "error_in_words": {"error": "engine died"},
    "no_object": ["what?"],
    "no_choices": {"choices": ["what?"]},
}
"""Sent with status 200."""

EOS, MARK, STOP_TOKEN = 256, 300, ord("\x07")
MODEL = "test-model"
_DEFAULT = ("max_tokens", 16)


def spoken(prompt: list[int], index: int) -> list[int]:
    """The whole answer to a prompt: a letter for the choice, then the prompt's last line."""
    said = prompt[:-1][_after_last(EOS, prompt) :]
    line = bytes(said).decode().rsplit("\n", 1)[-1]
    return [ord("a") + index, *line.encode(), EOS]


def _after_last(token: int, tokens: list[int]) -> int:
    return len(tokens) - tokens[::-1].index(token) if token in tokens else 0


def logprob_of(prefix: list[int], version: int) -> float:
    return -((zlib.crc32(repr((prefix, version)).encode()) % 5000) + 1) / 1000


def is_open_character(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoder.decode(data)
    return bool(decoder.getstate()[0])


class Written(Protocol):
    """What an answer is written to."""

    async def write(self, data: bytes) -> None: ...


@dataclass
class Fault:
    """What goes wrong in one generate request, after `after` tokens of all its choices.

    A cluster's faults are a queue: whichever replica gets the next request takes the first.
    """

    kind: str
    after: int = 0


@dataclass
class Replica:
    """One unit-test replica."""

    replica_id: str
    version: int = 1
    switch_after: int | None = None
    accent: int = 0
    tokens_per_chunk: int = 1
    forgets: bool = False
    cut: str | None = None
    tokenizer: Body | None = None
    faults: "deque[Fault]" = field(default_factory=deque)
    bodies: list[Any] = field(default_factory=list)
    traces: list[tuple[str | None, ...]] = field(default_factory=list)
    always: Fault | None = None
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    async def start(self) -> None:
        app = web.Application(client_max_size=2**25)
        app.router.add_post(RENDER_AND_GENERATE, self.render_and_generate)
        app.router.add_post("/v1/completions/derender", self.derender)
        app.router.add_post("/inference/v1/generate", self.generate)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_get("/tokenizer_info", self.tokenizer_info)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]

    def member(self, **changes: Any) -> Member:
        known = Member(
            replica_id=self.replica_id,
            address=f"http://127.0.0.1:{self.port}",
            state=ReplicaState.LIVE,
            committed_version=self.version,
            leased=True,
            model=MODEL,
            max_model_len=4096,
            pid=1,
        )
        return replace(known, **changes)

    async def render_and_generate(self, request: web.Request) -> web.StreamResponse:
        order = await request.json()
        body, params = order["body"], {"stream_interval": order["interval"]}
        chat = _chat_of(order["endpoint"], body)
        start = None if self.cut else order["start"]
        rendered = (
            self._begun(start, chat or body)
            if start
            else self._render(order["endpoint"], chat or body)
        )
        params |= rendered["sampling_params"]
        if order["fixed"] is not None:
            longest = min(params["max_tokens"], order["fixed"]["max_tokens"])
            params |= order["fixed"]["sampling"] | {"max_tokens": longest}
        if params["logprobs"] is None and order["logprobs"]:
            params["logprobs"] = 0
        if order["shown_early"] and any(map(params.get, HISTORY_DEPENDENT)):
            params.setdefault("seed", 7)
        stream = order["interval"] is None or params["max_tokens"] > order["interval"]
        prepared = {"request_id": order["request_id"], "stream": stream, "sampling_params": params}
        # As vLLM does: a field equal to the engine's default is left out.
        shown = {name: params[name] for name in params if (name, params[name]) != _DEFAULT}
        told: Body = {"request": rendered | prepared | {"sampling_params": shown}}
        told |= {"chat": chat} if chat else {}
        if order["start"] and self.cut:
            told["cut"] = self.cut
        return await self._generate(request, rendered | prepared, told)

    def _begun(self, start: Body, body: Body) -> Body:
        """A chat whose first messages are tokens already."""
        rendered = self._render("chat", {**body, "messages": body["messages"][start["messages"] :]})
        return rendered | {"token_ids": start["token_ids"] + rendered["token_ids"]}

    def _render(self, endpoint: str, body: Body) -> Body:
        if endpoint == "completions":
            (prompt,) = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
            return self._rendered(prompt, body, body.get("max_tokens", 16))
        said = {"assistant": "\x01{}\x02"}
        text = "".join(
            said.get(m["role"], m["role"] + "\n{}").format(self._written(m))
            for m in body["messages"]
        )
        return self._rendered(text, body, body.get("max_tokens"))

    def _written(self, message: Body) -> str:
        forgets = self.forgets and message["role"] == "assistant"
        return str(message["content"]).rpartition("</think>" if forgets else "\0")[2]

    def _rendered(self, text: str, body: Body, max_tokens: int | None) -> Body:
        if body.get("temperature", 1) < 0:
            error = {"message": "temperature must be non-negative", "type": "BadRequestError"}
            raise web.HTTPBadRequest(
                text=json.dumps({"error": {**error, "param": "temperature", "code": 400}}),
                content_type="application/json",
            )
        names = (
            "seed stop_token_ids min_tokens ignore_eos include_stop_str_in_output "
            "presence_penalty logit_bias"
        )
        params = {name: body[name] for name in names.split() if name in body}
        stop = body.get("stop") or []
        params["stop"] = [stop] if isinstance(stop, str) else stop
        if body.get("n", 1) != 1:
            params["n"] = body["n"]
        params["max_tokens"] = max_tokens or 400
        params["logprobs"] = body.get("top_logprobs") if body.get("logprobs") else None
        token_ids = [*({1: MARK, 2: EOS}.get(byte, byte) for byte in text.encode()), MARK]
        return {"token_ids": token_ids, "sampling_params": params, "model": body.get("model")}

    async def derender(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._fail_early("derender")
        state = body.get("stream_state") or {"open": []}
        decoder = codecs.getincrementaldecoder("utf-8")()
        decoder.setstate((bytes(state["open"]), 0))
        tokens = [t for t in body["generate_chunk"]["choices"][0]["token_ids"] if t < 256]
        text = decoder.decode(bytes(tokens))
        return web.json_response(
            {
                "chunk": {"choices": [{"text": text}]},
                "stream_state": {"open": list(decoder.getstate()[0])},
            }
        )

    async def tokenizer_info(self, _: web.Request) -> web.Response:
        if self.tokenizer is None:
            raise web.HTTPNotFound
        return web.json_response(self.tokenizer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The replica's own endpoint: who it is, as an answer of three words."""
        body = await request.json()
        self.bodies.append(body)
        fault = self.faults.popleft() if self.faults else Fault("")
        words = [f"{self.replica_id} ", "says ", "this"]
        if not body.get("stream"):
            if fault.kind == "drop":
                _cut(request)
            if fault.kind in ODD_ANSWERS:
                return web.json_response(ODD_ANSWERS[fault.kind])
            reason = "abort" if fault.kind == "abort" else "length"
            choice = {"index": 0, "text": "".join(words), "finish_reason": reason}
            return web.json_response({"choices": [choice], "made_by": "replica"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, word in enumerate(words):
            if fault.kind and number == fault.after:
                if fault.kind == "drop":
                    _cut(request)
                if fault.kind in ODD_ANSWERS:
                    await _send(response, ODD_ANSWERS[fault.kind])
                return response
            await _send(response, {"choices": [{"index": 0, "text": word}]})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _fail_early(self, kind: str) -> None:
        for fault in (self.always, self.faults[0] if self.faults else None):
            if fault is not None and fault.kind == kind:
                if fault is not self.always:
                    self.faults.popleft()
                raise web.HTTPInternalServerError(text="broken on purpose")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, await request.json())

    async def _generate(
        self, request: web.Request, body: Body, beside: Body | None = None
    ) -> web.StreamResponse:
        self.bodies.append(body)
        self.traces.append(tuple(map(request.headers.get, ("traceparent", "tracestate"))))
        self._fail_early("status")
        plan_is_ours = self.faults and self.faults[0].kind != "derender"
        fault = self.always or (self.faults.popleft() if plan_is_ours else None)
        whole = _Whole(beside or {})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if body["stream"]:
            await response.prepare(request)
            if beside:
                await _send(response, beside)
        try:
            await self._speak(request, response if body["stream"] else whole, body, fault)
        except (asyncio.CancelledError, ConnectionResetError):
            self.hung_up.set()
            raise
        return response if body["stream"] else web.json_response(whole.answer())

    async def _speak(
        self, request: web.Request, response: Written, body: Body, fault: Fault | None
    ) -> None:
        params = body["sampling_params"]
        count = params.get("n", 1)
        voices = [_Voice(self, body, index) for index in range(count)]
        sent = 0
        while any(not voice.finished for voice in voices):
            for voice in voices:
                if voice.finished:
                    continue
                if fault is not None and sent >= fault.after:
                    await self._break(request, response, voice, fault)
                    return
                chunk = voice.chunk(self.tokens_per_chunk)
                if voice.finished and fault is not None and fault.kind == "mute":
                    chunk |= {"finish_reason": None, "stop_reason": None}
                sent += len(chunk["token_ids"])
                await _send(response, {"choices": [chunk]})
        if fault is not None and fault.kind == "mute":
            return
        await response.write(b"data: [DONE]\n\n")

    async def _break(
        self, request: web.Request, response: Written, voice: "_Voice", fault: Fault
    ) -> None:
        if fault.kind == "drop":
            _cut(request)
        if fault.kind == "stall":
            self.stalled.set()
            await asyncio.Event().wait()
        if fault.kind == "abort":
            chunk = {"index": voice.index, "token_ids": [], "text": "", "finish_reason": "abort"}
            await _send(response, {"choices": [chunk]})
        if fault.kind == "abort_with_token":
            await _send(response, {"choices": [voice.chunk(1) | {"finish_reason": "abort"}]})
        if fault.kind == "error_event":
            await _send(response, {"error": {"message": "engine died", "code": 500}})
        if fault.kind == "engine_error":
            if isinstance(response, _Whole):
                text = json.dumps(ENGINE_ERROR)
                raise web.HTTPInternalServerError(text=text, content_type="application/json")
            await _send(response, ENGINE_ERROR)
        if fault.kind in ("unlabelled", "bad_label"):
            chunk = voice.chunk(1)
            bad = [{"version": "default", "start": 0, "end": voice.made}]
            chunk["weight_versions"] = None if fault.kind == "unlabelled" else bad
            await _send(response, {"choices": [chunk]})
        # "eof": the stream just ends.


def _chat_of(endpoint: str, body: Body) -> Body | None:
    """The chat of a request of another API, none for others."""
    if endpoint == "messages":
        system = [{"role": "system", "content": body["system"]}] if "system" in body else []
        chat = {"messages": system + body["messages"], "stop": body.get("stop_sequences")}
        same = {name: body[name] for name in ("max_tokens", "model", "temperature") if name in body}
        return same | chat
    if endpoint == "responses":
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        messages = [{"role": item["role"], "content": _text_of(item)} for item in items]
        chat = {"messages": messages, "max_tokens": body.get("max_output_tokens")}
        logprobs = bool(body.get("include"))
        return {**chat, "model": body["model"], "logprobs": logprobs}
    return None


def _text_of(item: Body) -> str:
    content = item["content"]
    return content if isinstance(content, str) else content[0]["text"]


class _Whole:
    """Gathers what would have been streamed."""

    def __init__(self, beside: Body) -> None:
        self.choices: dict[int, Body] = {}
        self.beside = beside

    async def write(self, data: bytes) -> None:
        if not data.startswith(b"data: [DONE]"):
            for chunk in json.loads(data.removeprefix(b"data: "))["choices"]:
                self._add(chunk)

    def _add(self, chunk: Body) -> None:
        known = self.choices.get(chunk["index"])
        if known is not None:
            chunk["token_ids"] = known["token_ids"] + chunk["token_ids"]
            chunk["text"] = known["text"] + chunk["text"]
            if known["logprobs"] is not None:
                content = known["logprobs"]["content"] + chunk["logprobs"]["content"]
                chunk["logprobs"] = {"content": content}
        self.choices[chunk["index"]] = chunk

    def answer(self) -> Body:
        return self.beside | {"choices": list(self.choices.values())}


class _Voice:
    """One choice of one generate request, with vLLM's finish rules."""

    def __init__(self, replica: Replica, body: Body, index: int) -> None:
        self.replica, self.params, self.index = replica, body["sampling_params"], index
        self.prefix = list(body["token_ids"])
        mark = _after_last(MARK, self.prefix)
        seed = self.params.get("seed") or 0
        self.script = spoken(self.prefix[:mark], (seed + index + replica.accent) % 26)
        self.at = len(self.prefix) - mark
        if self.at:
            self.script[: self.at] = self.prefix[mark:]
        self.made, self.finished = 0, False
        self.spans: list[Body] = []
        self.bytes, self.text, self.shown = b"", "", 0
        self.garbage = is_open_character(bytes(t for t in self.prefix[mark:] if t < 256))

    def chunk(self, size: int) -> Body:
        tokens: list[int] = []
        entries: list[Body] = []
        finish: str | None = None
        reason: str | int | None = None
        while len(tokens) < size and finish is None:
            token = self._next()
            tokens.append(token)
            entries.append(self._entry(token))
            finish, reason = self._finish(token)
        self.finished = finish is not None
        return {
            "index": self.index,
            "token_ids": tokens,
            "text": self._delta(reason),
            "logprobs": None if self.params.get("logprobs") is None else {"content": entries},
            "finish_reason": finish,
            "stop_reason": reason,
            "weight_versions": [dict(span) for span in self.spans],
        }

    def _next(self) -> int:
        allowed = self.made >= self.params.get("min_tokens", 0)
        token = self.script[self.at] if self.at < len(self.script) else EOS
        if token == EOS and (not allowed or self.params.get("ignore_eos")):
            token = ord("~")
        return token

    def _entry(self, token: int) -> Body:
        late = self.replica.switch_after is not None and self.at >= self.replica.switch_after
        version = self.replica.version + late
        value = logprob_of(self.prefix, version)
        if not self.spans or self.spans[-1]["version"] != str(version):
            self.spans.append({"version": str(version), "start": self.made, "end": self.made})
        self.prefix.append(token)
        self.made, self.at = self.made + 1, self.at + 1
        self.spans[-1]["end"] = self.made
        name = chr(token) if token < 128 else "\ufffd"
        top = [{"token": name, "logprob": value, "bytes": [token % 256]}]
        return {"token": name, "logprob": value, "bytes": [token % 256], "top_logprobs": top}

    def _finish(self, token: int) -> tuple[str | None, str | int | None]:
        minimum = self.params.get("min_tokens", 0)
        if token == EOS and not self.params.get("ignore_eos"):
            return "stop", None
        if token in self.params.get("stop_token_ids", ()) and self.made > minimum:
            return "stop", token
        before = len(self.text)
        self.bytes += bytes([token % 256])
        self.text = codecs.getincrementaldecoder("utf-8")("replace").decode(self.bytes)
        for stop in self.params.get("stop") or []:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0 and self.made > minimum:
                keep = self.params.get("include_stop_str_in_output")
                self.text = self.text[: at + (len(stop) if keep else 0)]
                return "stop", stop
        if self.made >= self.params.get("max_tokens", 10_000):
            return "length", None
        return None, None

    def _delta(self, reason: str | int | None) -> str:
        stops = self.params.get("stop") or []
        end = len(self.text)
        if stops and not self.finished and not self.params.get("include_stop_str_in_output"):
            end -= max(map(len, stops)) - 1
        end = max(end, self.shown)
        delta, self.shown = self.text[self.shown : end], end
        if self.garbage and delta:
            # vLLM repeats the prompt when it ends inside a character.
            self.garbage, delta = False, f"<the whole prompt again>{delta}"
        return delta


def _cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def _send(response: Written, chunk: Any) -> None:
    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())


class Bus:
    """The member table, changed by tests."""

    def __init__(self, lease_s: float = 30.0) -> None:
        self.members: dict[str, Member] = {}
        self.revision, self.lease_s = 0, lease_s
        self.talking = asyncio.Event()
        self.talking.set()
        self._changed = asyncio.Condition()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.revision > revision)
        await self.talking.wait()
        return MemberTable(
            bus_id="b",
            revision=self.revision,
            newest_version=1,
            lease_s=self.lease_s,
            members=tuple(self.members.values()),
            trainer_ready=True,
            pushes=0,
        )

    async def put(self, *members: Member) -> None:
        async with self._changed:
            self.members.update({member.replica_id: member for member in members})
            self.revision += 1
            self._changed.notify_all()


class _Server(uvicorn.Server):
    """Starts and stops on events, where uvicorn itself looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening, self.leaving = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=300)
        assert not self.server_state.tasks, "a request outlived its client"
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Cluster:
    """A router over HTTP, its bus and its replicas."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.faults: deque[Fault] = deque()
        self.bus = Bus()
        self._stack = contextlib.AsyncExitStack()

    async def start(
        self,
        *,
        replicas: int = 2,
        leased: bool = True,
        lease_s: float = 30.0,
        point: Any = None,
        sessions: Any = None,
        node: Any = None,
        **config: Any,
    ) -> Self:
        self.bus.lease_s = lease_s
        for number in range(replicas):
            replica = Replica(f"replica-{number}")
            await replica.start()
            self._stack.push_async_callback(replica.runner.cleanup)
            replica.faults = self.faults
            self.replicas.append(replica)
        await self.bus.put(*(replica.member(leased=leased) for replica in self.replicas))
        settings = {
            "journal_tokens": 1,
            "lease_wait_s": 5.0,
            "retry_pause_s": 0.001,
            "eject_s": 0.01,
            **config,
        }
        self.app = build_http(RouterConfig(**settings), self.bus, point, sessions, node)
        await self._listen()
        return self

    async def _listen(self) -> None:
        # With the protocol named, asyncio switches Nagle's delay (40 ms an answer) off.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = _Server(uvicorn.Config(self.app, log_level="error", lifespan="on"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(300):
            await server.listening.wait()

        async def stop() -> None:
            server.leaving.set()
            async with asyncio.timeout(300):
                await task

        self._stack.push_async_callback(stop)
        # Without TLS settings: reading the machine's certificates costs more than a test.
        self.http = httpx.AsyncClient(timeout=300, verify=False)
        self.client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=300,
            http_client=self.http,
        )
        self._stack.push_async_callback(self.http.aclose)

    @property
    def reservations(self) -> Any:
        return self.app.state.replicas.reservations

    async def until_leased(self, *replica_ids: str) -> None:
        """The router has come to see leases of exactly these replicas."""
        membership = self.reservations.membership
        async with asyncio.timeout(300):
            while set(membership.leased(None)) != set(replica_ids):
                await membership.wait_for_change(0.05)

    async def stalled(self) -> Replica:
        """The replica that has just stalled on purpose."""
        waits = {asyncio.create_task(r.stalled.wait()): r for r in self.replicas}
        done, open_waits = await asyncio.wait(waits, timeout=300, return_when="FIRST_COMPLETED")
        for task in open_waits:
            task.cancel()
        return waits[done.pop()]

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.close()


@pytest.fixture
def fault() -> type[Fault]:
    return Fault
