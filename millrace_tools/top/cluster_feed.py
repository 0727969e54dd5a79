"""The state of the weight bus and of Ray, read by a process that is joined to the cluster.

A process joined to a cluster ends with it. The view must not, so another process joins, and is
started again whenever it has ended.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any, Self

from services.protocol.errors import InvalidInput, NotReady

_LOOK_S = 1.0
_AGAIN_S = 2.0
_END_S = 5.0
_SILENT_S = 15.0
"""If the bus is silent for so long, the cluster may have been replaced: join again."""


class ClusterFeed:
    """Keeps the newest state that the process has printed; a context manager.

    Attributes:
        newest: the newest state, None before the first.
        problem: why there is none, else empty.
        heard: set when the process has printed anything, or has ended.
    """

    def __init__(self, address: str | None) -> None:
        self._command = [sys.executable, "-m", __name__, *([address] if address else [])]
        self.newest: Mapping[str, Any] | None = None
        self.problem = "joining the cluster"
        self.heard = threading.Event()
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep, name="cluster-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(_END_S)

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the view
            )
            with self._process as process:
                assert process.stdout is not None
                self._listen(process.stdout)
                process.kill()
            self._closing.wait(_AGAIN_S)

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                state = json.loads(line)
            except ValueError:
                continue  # the end of the process cut it short, or Ray has printed it
            if isinstance(state, dict):
                self.problem = state.get("problem", "")
                self.newest = None if self.problem else state
                self.heard.set()
        self.newest = None
        self.problem = self.problem or "the connection to the cluster was lost"
        self.heard.set()


def main() -> None:
    """The process: prints a line of JSON a second until the cluster or the reader has ended."""
    address = next(iter(sys.argv[1:]), None)
    threading.Thread(target=_end_with_reader, daemon=True).start()
    # In this process alone: Ray takes a second to import.
    from millrace_tools.client.joined_cluster import joined_cluster

    try:
        with joined_cluster(address):
            asyncio.run(_print_states())
    except (InvalidInput, NotReady) as error:
        _print({"problem": getattr(error, "fix", str(error))})


def _end_with_reader() -> None:
    sys.stdin.read()
    os._exit(0)


async def _print_states() -> None:
    import ray

    from services.peers import bus_peer

    bus = bus_peer()
    heard = time.monotonic()
    while time.monotonic() - heard < _SILENT_S:
        try:
            table, versions = await bus.watch(-1, 0.0), await bus.versions()
            heard = time.monotonic()
        except NotReady as error:
            _print({"problem": str(error)})
            await asyncio.sleep(_LOOK_S)
            continue
        nodes = await asyncio.to_thread(ray.nodes)  # type: ignore[no-untyped-call]
        pages = [
            f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for node in nodes
            if node["Alive"]
        ]
        records = [asdict(record) for record in versions]
        _print({"table": asdict(table), "versions": records, "pages": pages})
        await asyncio.sleep(_LOOK_S)


def _print(state: Mapping[str, Any]) -> None:
    print(json.dumps(state), flush=True)


if __name__ == "__main__":
    main()
