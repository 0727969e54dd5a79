"""The HTTP API of workspaces, small: Python runs in the test's own process, files are a dict."""

import asyncio
import io
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from typing import Any

from aiohttp import web

PREFIX = "/v1/sandboxes"


class FakeSandboxes:
    """Answers as the service does.

    Attributes:
        open: files of the workspaces that are open, by id.
        asked: method, path, key and JSON of all requests.
        failures: answers to the next requests, instead of the usual ones; None for the usual one.
        fail: answers to all requests of a kind, such as `python`; "" for the opening.
        score: the answer to `grade`.
    """

    def __init__(self) -> None:
        self.open: dict[str, dict[str, bytes]] = {}
        self.asked: list[tuple[str, str, str | None, Any]] = []
        self.failures: list[tuple[int, dict[str, Any]] | None] = []
        self.fail: dict[str, tuple[int, dict[str, Any]]] = {}
        self.score: dict[str, Any] = {"verdict": "accepted", "reward": 1.0, "detail": ""}
        self.url = ""
        self._variables: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count()
        self._closed = asyncio.Event()

    async def all_closed(self) -> None:
        """Wait until no workspace is open."""
        while self.open:
            self._closed.clear()
            await self._closed.wait()

    def add_to(self, app: web.Application) -> None:
        app.router.add_route("*", PREFIX, self._serve)
        app.router.add_route("*", PREFIX + "/{id}", self._serve)
        app.router.add_route("*", PREFIX + "/{id}/{what}", self._serve)
        app.router.add_route("*", PREFIX + "/{id}/{what}/{path:.*}", self._serve)

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.read()
        is_json = request.content_type == "application/json"
        sent: Any = await request.json() if is_json and body else body
        path = request.path.removeprefix(PREFIX)
        self.asked.append((request.method, path, request.headers.get("authorization"), sent))
        what = request.match_info.get("what", "")
        failure = self.failures.pop(0) if self.failures else None
        if request.method != "DELETE" and failure is None:
            failure = self.fail.get(what)
        if failure is not None:
            status, fields = failure
            return error(status, **fields)
        if not path:
            name = f"one-{next(self._numbers)}"
            files = sent.get("files", {})
            self.open[name] = {file: text.encode() for file, text in files.items()}
            self._variables[name] = {}
            return web.json_response({"id": name}, status=201)
        name = request.match_info["id"]
        if name not in self.open:
            return error(404, message="there is no such workspace", type="not_found")
        handler = {"files": self._files, "python": self._python, "exec": self._exec}.get(what)
        if handler is not None:
            return handler(request, name, sent)
        if what == "list":
            files = self.open[name].items()
            entries = [
                {"path": path, "kind": "file", "bytes": len(content), "mode": 0o644}
                for path, content in sorted(files)
            ]
            return web.json_response(entries)
        if what == "grade":
            return web.json_response(self.score)
        assert request.method == "DELETE"
        del self.open[name]
        self._closed.set()
        return web.json_response({})

    def _files(self, request: web.Request, name: str, sent: Any) -> web.Response:
        path = request.match_info["path"]
        if request.method == "PUT":
            self.open[name][path] = sent
            return web.json_response({})
        if path not in self.open[name]:
            fix = "There is no such file."
            return error(404, message=f"{path}: {fix}", param="path", value=path, fix=fix)
        return web.Response(body=self.open[name][path])

    def _python(self, request: web.Request, name: str, sent: Any) -> web.Response:
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                exec(sent["code"], self._variables[name])
        except (Exception, SystemExit) as problem:  # noqa: BLE001  as a notebook does
            shown = f"{type(problem).__name__}: {problem}"
            return result(status="failed", stdout=printed.getvalue(), traceback=shown)
        return result(status="ok", stdout=printed.getvalue())

    def _exec(self, request: web.Request, name: str, sent: Any) -> web.Response:
        return result(status="ok", stdout=" ".join(sent["argv"]), exit_code=0)


def result(**fields: Any) -> web.Response:
    return web.json_response(fields | {"stdout_bytes": len(fields.get("stdout", ""))})


def error(status: int, **fields: Any) -> web.Response:
    return web.json_response({"error": fields}, status=status)


@asynccontextmanager
async def fake_sandboxes() -> AsyncIterator[FakeSandboxes]:
    """One that listens on loopback."""
    fake, app = FakeSandboxes(), web.Application(client_max_size=1 << 26)
    fake.add_to(app)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()
