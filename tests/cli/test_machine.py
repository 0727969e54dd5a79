"""The demo's checks of the machine."""

import errno
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millrace_tools.capacity import machine
from millrace_tools.capacity.machine import check_folder, check_memory, check_port
from millrace_tools.demo import demo
from millrace_tools.main import main
from services.protocol.errors import InvalidInput

ROOT = Path(__file__).parents[2]
UNWRITABLE = "/proc/nowhere"
"""Not even root can make it."""


def test_a_port_in_use_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["demo", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --port: {port} -> Address already in use.")
    assert error.count("\n") == 1


def test_a_free_port_is_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    check_port(port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 65535"):
        check_port(port)


def test_too_little_memory_is_refused_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 1.5 * machine.GIB)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["demo", "--port", str(port)]) == 2
    assert "memory: '1.5 GiB free' -> The demo needs" in capsys.readouterr().err


def test_this_machine_has_some_memory() -> None:
    check_memory(0.01)


def test_a_temporary_folder_that_cannot_be_written_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "TEMPORARY", UNWRITABLE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["demo", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: folder: {UNWRITABLE!r} -> ")
    assert "Ray's session needs a folder that can be written, with 256 MiB free." in error
    assert error.count("\n") == 1


def test_a_folder_on_a_full_disk_is_refused_with_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda _: 63 * machine.MIB)
    check_folder(tmp_path / "runs", 63, "the demo")
    with pytest.raises(InvalidInput, match="63 MiB free: the demo needs"):
        check_folder(tmp_path / "runs", 64, "the demo")
    assert not list(tmp_path.iterdir()), "looking leaves nothing"


def test_without_ipv4_no_other_port_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ipv6Only(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(machine.socket, "socket", Ipv6Only)
    with pytest.raises(InvalidInput, match=r"127\.0\.0\.1.*ip address add 127\.0\.0\.1/8 dev lo"):
        check_port(8000)


def _make(folder: Path, *arguments: str) -> str:
    """What `make` says that cannot install here; it has made no environment."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(
        ["make", *arguments, ".venv/ready"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert not (folder / ".venv").exists()
    return done.stdout + done.stderr


def test_make_names_the_package_where_python_has_no_venv(tmp_path: Path) -> None:
    python = tmp_path / "python"
    script = 'import sys; sys.modules["ensurepip"] = None; exec(sys.argv[1])'
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{script}' \"$2\"\n")
    python.chmod(0o755)
    said = _make(tmp_path, "PYTHON=./python")
    assert said.startswith("error: venv: this Python lacks it -> apt-get install python3-venv")


def test_a_make_that_is_too_old_says_so(tmp_path: Path) -> None:
    assert "too old -> install GNU make 4.0 or newer" in _make(tmp_path, ".FEATURES=")


def test_a_negative_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "-1"]) == 2
    assert "error: --seed: -1 ->" in capsys.readouterr().err
