"""Child processes of `benchmarks.router.overhead`, and the CPU that they and their children use."""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from benchmarks.processes import Usage
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
        self._ends_with_input = "--serve" in command
        self._by_pid: dict[int, tuple[str, float]] = {}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self, url: str, timeout_s: float = 240.0) -> None:
        """Wait for a 200.

        Raises:
            RuntimeError: the process ended or did not answer in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url, timeout=5).status_code == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} did not start:\n{self._log.read_text()[-3000:]}")

    def usage(self) -> Usage:
        """CPU seconds so far of the whole tree, ended processes included."""
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    name = self._named(process)
                    self._by_pid[process.pid] = (name, times.user + times.system)
        usage: Usage = {}
        for name, seconds in self._by_pid.values():
            usage[name] = usage.get(name, 0.0) + seconds
        return usage

    def _named(self, process: psutil.Process) -> str:
        if process.pid == self.process.pid:
            return self.name
        command = " ".join(process.cmdline())
        program = os.path.basename(command.split(" ", 1)[0])
        for title, name in TITLES.items():
            if command.startswith(title) or program.startswith(title):
                return name
        return f"rest of {self.name}"

    def end(self) -> None:
        """Ask it to end by closing its standard input, then kill what is left of its group."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60 if self._ends_with_input else 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 15)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait(20)
