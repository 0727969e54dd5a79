"""Socket files live no longer than it takes to connect."""

import os
import tempfile
from pathlib import Path

import pytest
import zmq
from vllm.utils.network_utils import get_open_zmq_ipc_path

from services.rollout_server.engine.engine_environment import engine_sockets


def test_a_connected_socket_outlives_its_file() -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        for socket in (one, two):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 10_000)
        with engine_sockets():
            path = get_open_zmq_ipc_path()
            one.bind(path)
            two.connect(path)
            one.send(b"up")
            assert two.recv() == b"up"
            file = Path(path.removeprefix("ipc://"))
            assert file.is_socket()
        assert not file.parent.exists()
        two.send(b"still there")
        assert one.recv() == b"still there"


def test_a_start_that_fails_leaves_no_folder_and_no_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="vllm-") as parent:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", parent)
        with pytest.raises(RuntimeError, match=f"no engine below {parent}"):
            _fail_to_start()
        assert os.environ["VLLM_RPC_BASE_PATH"] == parent
        assert os.listdir(parent) == []


def _fail_to_start() -> None:
    with engine_sockets():
        raise RuntimeError(f"no engine below {os.environ['VLLM_RPC_BASE_PATH']}")


def test_only_the_owner_reaches_the_sockets() -> None:
    with engine_sockets():
        mode = Path(os.environ["VLLM_RPC_BASE_PATH"]).stat().st_mode
    assert mode & 0o077 == 0
