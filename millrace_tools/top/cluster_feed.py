"""What the bus and Ray know, from a process of its own that is joined to the cluster.

A process joined to a cluster ends with it. The view must not, so another one is joined and
started again whenever it has ended.
"""

import argparse
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
"""Without a word from the bus for so long the cluster may be another one: join again."""


class ClusterFeed:
    """Keeps the newest word of the process; a context manager.

    Attributes:
        newest: the last look, None before the first.
        problem: why there is none, empty while there is.
    """

    def __init__(self, address: str | None) -> None:
        self._command = [sys.executable, "-m", __name__]
        self._command += ["--address", address] if address else []
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
            word = _word(line)
            if word is None:
                continue
            self.problem = word.get("problem", "")
            self.newest = None if self.problem else word
            self.heard.set()
        self.newest = None
        self.problem = self.problem or "the connection to the cluster was lost"
        self.heard.set()


def _word(line: str) -> dict[str, Any] | None:
    """What the process said; None for a line that its end cut short, or that Ray has printed."""
    try:
        word = json.loads(line)
    except ValueError:
        return None
    return word if isinstance(word, dict) else None


def main() -> None:
    """The process: a line of JSON a look, until the cluster or whoever reads is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address")
    address = parser.parse_args().address
    threading.Thread(target=_end_with_reader, daemon=True).start()
    # In this process alone: Ray takes a second to import.
    from millrace_tools.client.joined_cluster import JoinedCluster

    try:
        with JoinedCluster(address):
            asyncio.run(_tell())
    except (InvalidInput, NotReady) as error:
        _say({"problem": getattr(error, "fix", str(error))})


def _end_with_reader() -> None:
    sys.stdin.read()
    os._exit(0)


async def _tell() -> None:
    import ray

    from services.peers import bus_peer

    bus = bus_peer()
    heard = time.monotonic()
    while time.monotonic() - heard < _SILENT_S:
        try:
            table, versions = await bus.watch(-1, 0.0), await bus.versions()
            heard = time.monotonic()
        except NotReady as error:
            _say({"problem": str(error)})
            await asyncio.sleep(_LOOK_S)
            continue
        nodes = await asyncio.to_thread(ray.nodes)  # type: ignore[no-untyped-call]
        pages = [
            f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for node in nodes
            if node["Alive"]
        ]
        _say(
            {
                "table": asdict(table),
                "versions": [asdict(record) for record in versions],
                "pages": pages,
            }
        )
        await asyncio.sleep(_LOOK_S)


def _say(word: Mapping[str, Any]) -> None:
    print(json.dumps(word), flush=True)


if __name__ == "__main__":
    main()
