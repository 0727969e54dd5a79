"""`make demo`'s command as a user runs it: it ends well, and it leaves nothing behind."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace_tools.capacity.machine import free_port
from millrace_tools.cluster.leftovers import (
    adopt_orphans,
    descendants,
    forgotten_segments,
    shared_memory_segments,
)
from services.ledger.ledger import ledger_of
from services.page.reading.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
DEMO_S = 1500
pytestmark = pytest.mark.timeout(1700)


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, which must be free again afterwards."""
    number = free_port()
    yield number
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", number))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Whatever a test starts is gone when it ends: orphans are handed to this process."""
    adopt_orphans()
    processes = set(descendants(os.getpid()))
    segments, folders = shared_memory_segments(), folders_of_clusters()
    yield
    left = set(descendants(os.getpid())) - processes
    assert not left, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
    deadline = time.monotonic() + 60
    # Another program may be making one.
    while forgotten := _not_of_others(forgotten_segments(segments)) | forgotten_folders(folders):
        assert time.monotonic() < deadline, forgotten
        time.sleep(0.1)


def _not_of_others(segments: set[Path]) -> set[Path]:
    """Without semaphores where a tracker of another test runs: it unlinks them when it ends.

    The engine of several workers that such a test has killed leaves one.
    """
    trackers = b"multiprocessing.resource_tracker"
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process ended
            if trackers in command.read_bytes():
                return {path for path in segments if not path.name.startswith("sem.")}
    return segments


_COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "ld")


@pytest.fixture
def poor(tmp_path: Path) -> dict[str, str]:
    """No compiler, no home that can be written, and a proxy that nobody answers at."""
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            link = tmp_path / program.name
            if program.name not in _COMPILERS and not link.is_symlink():
                link.symlink_to(program)
    proxies = {
        name: "http://127.0.0.1:9"
        for each in ("http_proxy", "https_proxy", "all_proxy")
        for name in (each, each.upper())
    }
    return {"PATH": str(tmp_path), "HOME": "/proc/nowhere", "NO_PROXY": ""} | proxies


def folders_of_clusters() -> set[Path]:
    return set(Path("/tmp").glob("millrace-????????"))


def forgotten_folders(before: set[Path]) -> set[Path]:
    """Those newer than `before` that no living process has among its arguments."""
    commands = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            commands += path.read_bytes()
    return {one for one in folders_of_clusters() - before if os.fsencode(one) not in commands}


@pytest.fixture
def start_demo(port: int) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """The command, which is interrupted if its test has failed before it ended."""
    started = []
    words = ["-m", "millrace_tools.main", "demo", "--port", str(port)]

    def start(
        changes: dict[str, str] | None = None, *own: str, cwd: Path = ROOT
    ) -> "subprocess.Popen[str]":
        demo = subprocess.Popen(
            [sys.executable, *words, *(own or ("--steps", "2"))],
            cwd=cwd,
            env=os.environ | (changes or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(demo)
        return demo

    yield start
    for demo in started:
        if demo.poll() is None:
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=DEMO_S)


def test_the_demo_trains_sums_up_and_leaves_nothing_behind(
    start_demo: Callable[..., "subprocess.Popen[str]"], poor: dict[str, str]
) -> None:
    demo = start_demo(poor)
    said, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 0, said
    (shown,) = re.findall(r"run directory +(\S+)", said)
    run_dir = ROOT / shown
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["train_steps"] == 2
    # A version is skipped where the next one is published before it was sent.
    assert summary["weight_pushes"] in (1, 2)
    assert summary["policy_version"] == 2
    assert summary["tokens_sampled"] > 2000
    with ledger_of(run_dir) as ledger:
        assert ledger.tokens_sampled() == summary["tokens_sampled"]
        assert ledger.tokens_evaluated() == summary["tokens_evaluated"]
    on_page = RunFolder.open(run_dir).overview()["flow"]["tokens"]["admitted"]
    (printed,) = re.findall(r"tokens sampled +([\d,]+)", said)
    assert on_page == int(printed.replace(",", "")) == summary["tokens_sampled"]
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    answers = [json.loads(line) for line in (run_dir / "trajectories.jsonl").open()]
    assert all(answer["verdict"] for answer in answers)


@pytest.mark.slow
def test_a_task_of_ones_own_is_learned_as_it_was_written(
    start_demo: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    clone = {"PYTHONPATH": str(ROOT)}
    init = [sys.executable, "-m", "millrace_tools.main", "init", "--task", "mine"]
    subprocess.run(init, cwd=tmp_path, env=os.environ | clone, check=True)
    demo = start_demo(clone, "mine", cwd=tmp_path)
    said, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 0, said
    (run_dir,) = (tmp_path / "mine" / "runs").iterdir()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["train_steps"] == 20
    assert summary["heldout_pass_rate_after"] > summary["heldout_pass_rate_before"]
    assert summary["failures"] == {}


def test_ctrl_c_during_start_up_leaves_nothing_behind(start_demo) -> None:
    demo = start_demo()
    assert demo.stdout is not None
    for line in demo.stdout:
        if "deploying" in line:
            break
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 130, said
    assert "Traceback" not in said
