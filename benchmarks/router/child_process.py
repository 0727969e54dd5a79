"""Child processes of `benchmarks.router.overhead`, and the CPU that they and their children use."""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from benchmarks.processes import CpuMeter, name_by_title
from benchmarks.report import ROOT

TITLES = {
    "ray::ServeReplica": "router",
    "ray::ProxyActor": "Serve proxy",
    "ray::HAProxy": "HAProxy's actor",
    "haproxy": "HAProxy",
    "VLLM::": "engine core",
}
"""How a command line begins, and what its process is called in the table."""


class Child:
    """A process of ours with all its descendants.

    Args:
        name: what it is called in tables.
        command: to run, in the repository's root.
        folder: for its log.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, **environment: str) -> None:
        self.name, self._log = name, folder / f"{name.replace(' ', '-')}.log"
        self._ends_with_input = "benchmarks.router.fixed_router" in command
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.usage = CpuMeter(self._process.pid, self._named).read

    def wait_until_up(self, url: str, timeout_s: float = 240.0) -> None:
        """Wait for a 200.

        Raises:
            RuntimeError: the process ended or did not answer in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url, timeout=5).status_code == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} did not start:\n{self._log.read_text()[-3000:]}")

    def _named(self, process: psutil.Process) -> str:
        if process.pid == self._process.pid:
            return self.name
        return name_by_title(process, TITLES, f"rest of {self.name}")

    def end(self) -> None:
        """Ask it to end by closing its standard input, then kill what is left of its group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60 if self._ends_with_input else 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 15)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait(20)
