"""Locks of devices between real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.protocol.errors import NotReady
from services.shared_devices import SharedDevices

HOLDER = """
import asyncio, os, sys
from pathlib import Path
from services.shared_devices import SharedDevices
devices = SharedDevices([sys.argv[2]], Path(sys.argv[1]))
asyncio.run(devices.take(60))
child = os.fork() if sys.argv[3] == "with-child" else None
if child == 0:
    sys.stdin.read()  # ends when the test closes it
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


def holder(folder: Path, name: str, kind: str = "alone") -> "subprocess.Popen[str]":
    """A process that has locked the device."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), name, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def test_a_device_is_one_process_at_a_time_and_free_when_that_is_killed(
    tmp_path: Path,
) -> None:
    devices, other = SharedDevices(["0"], tmp_path), SharedDevices(["1"], tmp_path)
    with holder(tmp_path, "0") as process:
        asked = []
        with pytest.raises(NotReady, match="another process has used device 0"):
            await devices.take(0.2, waiting=lambda: asked.append(1))
        assert asked
        await other.take(60)
        process.send_signal(signal.SIGKILL)
        await devices.take(60)
    devices.release()
    with holder(tmp_path, "0") as process:
        process.kill()


async def test_a_device_is_not_free_while_a_child_of_the_killed_process_lives(
    tmp_path: Path,
) -> None:
    devices = SharedDevices(["0"], tmp_path)
    with holder(tmp_path, "0", "with-child") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(NotReady):
            await devices.take(0.2)
        assert process.stdin is not None
        process.stdin.close()  # which the child reads
        await devices.take(60)


async def test_each_engine_without_a_gpu_has_a_share_that_its_rank_finds_by_name(
    tmp_path: Path,
) -> None:
    first, second = SharedDevices.claim(1, tmp_path), SharedDevices.claim(2, tmp_path)
    assert first.names == ("cpu-0",)
    assert second.names == ("cpu-1", "cpu-2")
    await first.take(60)
    rank = SharedDevices(first.names, tmp_path)
    with pytest.raises(NotReady):
        await rank.take(0.1)
    first.release()
    await rank.take(60)
