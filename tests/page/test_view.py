"""`millrace view`, as the command line takes it, and what it serves to whom."""

import socket
from pathlib import Path

import httpx
import pytest

from millrace_tools.main import main
from services.page.local_server import local_app
from services.page.run_store import FolderRunStore


def test_what_is_no_run_and_a_port_in_use_are_named(run_dir: Path, capsys) -> None:
    assert main(["view", str(run_dir / "checkpoints")]) == 2
    assert "error: RUN_DIR:" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", str(run_dir), "--port", str(port)]) == 2
    assert f"error: --port: {port}" in capsys.readouterr().err
    assert main(["view", str(run_dir), "--port", "70000"]) == 2


@pytest.mark.parametrize(("name", "status"), [("127.0.0.1", 200), ("evil.example", 400)])
async def test_only_this_machines_names_are_answered(run_dir: Path, name: str, status: int) -> None:
    transport = httpx.ASGITransport(local_app(FolderRunStore(run_dir)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8800") as http:
        answer = await http.get("/api/runs/test-1", headers={"host": f"{name}:8800"})
    assert answer.status_code == status
    assert ("reward" in answer.text) == (status == 200)
