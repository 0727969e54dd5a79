"""Server-sent events for browsers: the files of a run have changed."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from services.changes import Changes
from services.http.error_answer import error_answer
from services.page.reading.run_folder import RunFolder

LOOK_S = 1.0
_BEAT_S = 15.0
_MOST_STREAMS = 200


class ChangeStream:
    """Watches run directories for open pages; a browser then asks for what has changed.

    An event's data is the run's revision. A run's files are looked at once a second, however
    many follow it, and a comment keeps a quiet stream alive, so that a browser that is gone is
    noticed. When the directory is gone, the event `gone` ends the stream.
    """

    def __init__(
        self, *, look_s: float = LOOK_S, beat_s: float = _BEAT_S, most: int = _MOST_STREAMS
    ) -> None:
        self._look_s, self._beat_s, self._most = look_s, beat_s, most
        self._watches: dict[Path, _Watch] = {}
        self.open = 0

    @property
    def watched(self) -> int:
        """Number of runs that are watched."""
        return len(self._watches)

    def response(self, run: RunFolder) -> Response:
        """The stream of one run; 503 where too many are open."""
        if self.open >= self._most:
            fix = "Close other tabs with this page."
            return error_answer(503, "events", self.open, fix, message=fix)
        return _Stream(self, run, beat_s=self._beat_s)

    @contextmanager
    def following(self, run: RunFolder) -> Iterator["_Watch"]:
        """The watch over a run, while a page follows it."""
        watch = self._watches.get(run.path)
        if watch is None:
            watch = self._watches[run.path] = _Watch(run, self._look_s)
        watch.followers += 1
        self.open += 1
        try:
            yield watch
        finally:
            self.open -= 1
            watch.followers -= 1
            if not watch.followers:
                del self._watches[run.path]
                watch.end()


class _Watch:
    """Watches one run for all its followers."""

    def __init__(self, run: RunFolder, look_s: float) -> None:
        self._run, self._look_s = run, look_s
        self._revision: list[list[float]] | None = []
        self._news = Changes()
        self._task = asyncio.create_task(self._look(), name="run_watch")
        self.followers = 0

    def end(self) -> None:
        """No page follows any more."""
        self._task.cancel()

    async def _look(self) -> None:
        try:
            while self._revision is not None:
                revision = await asyncio.to_thread(self._run.revision)
                if revision != self._revision:
                    self._revision = revision
                    self._news.notify()
                await asyncio.sleep(self._look_s)
        finally:
            self._news.notify()

    async def other_than(
        self, sent: list[list[float]] | None, wait_s: float
    ) -> list[list[float]] | None:
        """The run's revision as soon as it is another than `sent`, at the latest after a time.

        None once the run is gone; an error of the watch is raised.
        """
        waits = self._revision == sent and not self._task.done()
        if waits and not await self._news.after(self._news.count, wait_s):
            return sent
        if self._task.done():
            self._task.result()
        return self._revision


class _Stream(StreamingResponse):
    """Follows the run from before its first byte until the browser disconnects."""

    def __init__(self, changes: ChangeStream, run: RunFolder, *, beat_s: float) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(self._events(), media_type="text/event-stream", headers=headers)
        self._changes, self._run, self._beat_s = changes, run, beat_s
        self._watch: _Watch | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        with self._changes.following(self._run) as self._watch:
            await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncIterator[str]:
        assert self._watch is not None
        sent: list[list[float]] | None = []
        while True:
            revision = await self._watch.other_than(sent, self._beat_s)
            if revision is None:
                yield "event: gone\ndata: null\n\n"
                return
            if revision == sent:
                yield ": still here\n\n"
            else:
                sent = revision
                yield f"event: change\ndata: {json.dumps(revision)}\n\n"
