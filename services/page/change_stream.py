"""Tells browsers that a run has something new, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi.responses import JSONResponse, Response, StreamingResponse

from services.page.run_folder import RunFolder

LOOK_S = 1.0
_BEAT_EVERY = 15
_MOST_STREAMS = 200


class ChangeStream:
    """Watches run directories for whoever looks; what has changed the browser then asks.

    An event's data is the run's revision. Files are looked at once a second, and a comment
    keeps a quiet stream alive, so that a browser that is gone is noticed.
    """

    def __init__(self, *, look_s: float = LOOK_S, most: int = _MOST_STREAMS) -> None:
        self._look_s = look_s
        self._most = most
        self.open = 0

    def response(self, run: RunFolder) -> Response:
        """The stream of one run; 503 where too many are open."""
        if self.open >= self._most:
            fix = "Close other tabs with this page."
            error = {"field": "events", "value": self.open, "fix": fix, "message": fix}
            return JSONResponse({"error": error}, status_code=503)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(run), media_type="text/event-stream", headers=headers)

    async def _events(self, run: RunFolder) -> AsyncIterator[str]:
        self.open += 1
        try:
            told, quiet = None, 0
            while True:
                revision = await asyncio.to_thread(run.revision)
                if revision != told:
                    told, quiet = revision, 0
                    yield f"event: change\ndata: {json.dumps(revision)}\n\n"
                elif (quiet := quiet + 1) % _BEAT_EVERY == 0:
                    yield ": still here\n\n"
                await asyncio.sleep(self._look_s)
        finally:
            self.open -= 1
