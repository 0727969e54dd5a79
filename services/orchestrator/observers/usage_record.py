"""Records how busy engines and nodes are while a run goes on."""

import asyncio
import time
from pathlib import Path

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.context import RunContext
from services.orchestrator.run_folder.journal import Journal

LOOK_S = 5.0
MOST_BYTES = 64 * 1024 * 1024
"""Of `usage.jsonl`: weeks; a full one becomes `usage.1.jsonl`."""
_log = Log("orchestrator")


async def follow_usage(context: RunContext, path: Path, *, look_s: float = LOOK_S) -> None:
    """Write a line at each look until cancelled; one that fails leaves out what it lacks.

    A line has `at`, seconds since 1970, the load of the `engines` as the router sees it, and the
    shares of CPU, memory and GPUs in use on each of the `nodes`.
    """
    journal, failing = Journal(path, max_bytes=MOST_BYTES, turns=True), False
    try:
        while True:
            try:
                load, nodes = await context.peers.load(context.config), await context.peers.nodes()
                failing = False
            except Exception as error:  # noqa: BLE001  the outer edge of a look
                RunMetrics.observer_failures.inc(1, context.tags | {"observer": "usage"})
                if not failing:
                    _log.warning("usage_not_seen", **context.tags, error=repr(error))
                load, nodes, failing = None, {}, True
            engines = load.model_dump(include=_ENGINES) if load else {}
            if engines or nodes:
                journal.write({"at": round(time.time(), 2), "engines": engines, "nodes": nodes})
            await asyncio.sleep(look_s)
    finally:
        journal.close()


_ENGINES = {"replicas", "in_flight", "waiting", "queued", "kv_usage"}
