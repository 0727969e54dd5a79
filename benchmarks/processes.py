"""Processes that a benchmark starts, and the CPU time that process trees use."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
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


def titled_cpu_s(titles: Mapping[str, str]) -> Usage:
    """CPU seconds of this process's descendants, by the name of their command line's title."""
    usage: Usage = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command, times = " ".join(process.cmdline()), process.cpu_times()
            for title, name in titles.items():
                if command.startswith(title):
                    usage[name] = usage.get(name, 0.0) + times.user + times.system
    return usage
