"""The demo's checks of the machine."""

import socket
from pathlib import Path

import pytest

from services.cli import machine
from services.cli.machine import check_memory, check_port
from services.cli.main import main
from services.protocol.errors import InvalidInput


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
    monkeypatch.setattr(machine, "_available", lambda: 1.5 * machine.GIB)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["demo", "--port", str(port)]) == 2
    assert "memory: '1.5 GiB free' -> The demo needs" in capsys.readouterr().err


def test_this_machine_has_some_memory() -> None:
    check_memory(0.01)


def test_a_containers_own_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2500\ninactive_file 400\n")
    assert machine._container_room(tmp_path) == 1400
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._container_room(tmp_path) == float("inf")
    assert machine._container_room(tmp_path / "none") == float("inf")


def test_a_negative_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "-1"]) == 2
    assert "error: --seed: -1 ->" in capsys.readouterr().err
