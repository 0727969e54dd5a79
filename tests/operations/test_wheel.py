"""The wheel, installed as docs/installing.md says into an environment of its own, works in an
empty folder."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

pytestmark = pytest.mark.timeout(1500)
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
(INSTALL,) = re.findall(r"^uv pip install --compile-bytecode 'millrace\[cpu\]'.*$", PAGE, re.M)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a fresh environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)
    command = INSTALL.replace("millrace[cpu]", f"millrace[cpu] @ file://{wheel}")
    # As in the Makefile: an index that has the CPU build of torch is asked first.
    command = f"{command.replace('--torch-backend cpu ', '')} ||\n{command}"
    environment = os.environ | {
        "VIRTUAL_ENV": str(folder / "env"),
        "UV_FIND_LINKS": os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", ""),
        "PATH": f"{uv.parent}:{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "env" / "bin"


def _said(installed: Path, folder: Path, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{installed}:{environment['PATH']}"
    done = subprocess.run(
        [installed / "millrace", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_wheel_works_without_a_clone(installed: Path, tmp_path: Path) -> None:
    assert "usage: millrace" in _said(installed, tmp_path, "--help")
    assert _said(installed, tmp_path, "--version").startswith("millrace ")
    assert "files written to" in _said(installed, tmp_path, "init")
    made = tmp_path / "millrace"
    assert "is good" in _said(installed, made, "check", "deploy/reward.yaml")
    (tmp_path / "sum.py").write_text("print(sum(map(int, input().split())))\n")
    (tmp_path / "sum.json").write_text('[{"stdin": "1 2", "expected": "3"}]')
    assert "accepted" in _said(installed, tmp_path, "grade", "sum.py", "--tests", "sum.json")


def test_the_demo_of_the_wheel_trains_a_model(installed: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = _said(installed, tmp_path, "demo", "--steps", "2", "--port", str(port))
    assert "finished" in said
    assert list((tmp_path / "millrace" / "runs").iterdir())
