"""Processes that a benchmark starts, and the CPU time that process trees use."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import ROOT

Usage = dict[str, float]
"""CPU seconds by name of process."""


def start(
    module: str, *arguments: Any, python: Path | str = sys.executable, **streams: Any
) -> "subprocess.Popen[str]":
    """Start `python -m benchmarks.MODULE` in the repository's root, also with a peer's Python."""
    return subprocess.Popen(
        [str(python), "-m", f"benchmarks.{module}", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.PIPE,
        text=True,
        **streams,
    )


def next_message(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line that is a JSON object; other output is left out.

    Raises:
        RuntimeError: the process ended.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"'):
            message: dict[str, Any] = json.loads(line)
            return message
    raise RuntimeError("the process ended early or hung; its error, if any, is above")


def tree_cpu_s() -> float:
    """CPU seconds of this process, its descendants, and those that they waited for."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


class CpuMeter:
    """CPU seconds of a process and its descendants by name, those that have ended included.

    Args:
        root: pid of the process.
        name_of: name of a process, which may change while it lives.
    """

    def __init__(self, root: int, name_of: Callable[[psutil.Process], str]) -> None:
        self._root, self._name_of = psutil.Process(root), name_of
        self._seen: dict[tuple[int, float], float] = {}
        self._usage: Usage = defaultdict(float)
        self._lock = threading.Lock()

    def read(self) -> Usage:
        """CPU seconds until now; those of a process that ended, until the call before its end."""
        with self._lock:
            with contextlib.suppress(psutil.Error):
                for process in (self._root, *self._root.children(recursive=True)):
                    self._look_at(process)
            return dict(self._usage)

    def _look_at(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error), process.oneshot():  # it may end meanwhile
            times, name = process.cpu_times(), self._name_of(process)
            key, used = (process.pid, process.create_time()), times.user + times.system
            self._usage[name] += used - self._seen.get(key, 0.0)
            self._seen[key] = used


def since(before: Usage, now: Usage) -> Usage:
    """CPU seconds between two readings."""
    return {name: used - before.get(name, 0.0) for name, used in now.items()}


def name_by_title(process: psutil.Process, titles: Mapping[str, str], other: str) -> str:
    """The name that goes with how the command line or the program begins."""
    line = " ".join(process.cmdline())
    program = os.path.basename(line.split(" ", 1)[0])
    for title, name in titles.items():
        if line.startswith(title) or program.startswith(title):
            return name
    return other
