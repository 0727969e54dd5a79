"""What README and guides say to type, typed: in order, on a machine of its own.

Namespaces give the shell a loopback, processes and a /tmp/ray that nobody shares, so that the
commands stand as they are: their ports are free, and `ray stop` ends this Ray alone.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides.blocks import ROOT, SHELL, Block
from tests.guides.walk import walked

pytestmark = pytest.mark.timeout(1800)
NAMESPACES = ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
TREE = ("benchmarks", "deploy", "docs", "examples", "services", "README.md", "pyproject.toml")
# SIOCSIFFLAGS with IFF_UP and IFF_RUNNING: what `ip link set lo up` does, without iproute2.
LOOPBACK = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0x41))"
)
PREAMBLE = """set -eo pipefail
PATH={path}:$PATH
mkdir home sessions && mkdir -p /tmp/ray && mount --bind sessions /tmp/ray
export HOME=$PWD/home PYTHONPATH=$PWD RAY_USAGE_STATS_ENABLED=0
python -c "{loopback}"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone with `make` done in it, and the files of docs/your-own-tasks.md."""
    unshared = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True)
    if unshared.returncode:
        pytest.skip(f"no namespaces here, run as root: {unshared.stderr.strip()}")
    for name in TREE:
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            leave = shutil.ignore_patterns("__pycache__", "model*", "runs", "tasks.jsonl")
            shutil.copytree(source, target, ignore=leave)
        else:
            shutil.copy(source, target)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    page = (ROOT / "docs" / "your-own-tasks.md").read_text(encoding="utf-8")
    (tmp_path / "my_tasks").mkdir()
    for name, text in re.findall(r"`(my_tasks/[\w.]+)`:\n\n```\w+\n(.*?)```", page, re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def _script() -> str:
    first, *others = walked()
    *opening, ending = first.text.strip().splitlines()
    steps = [f"echo WALK {first}", *opening]
    for block in others:
        steps += [f"echo WALK {block}", _typed(block)]
    return "\n".join(
        [
            PREAMBLE.format(loopback=LOOPBACK, path=Path(sys.prefix) / "bin"),
            *steps,
            f"echo WALK {first} end",
            ending,
            "",
        ]
    )


def _typed(block: Block) -> str:
    """The block with the names that a reader fills in filled in."""
    if block.language not in SHELL:
        return f"python - <<'END_OF_PROGRAM'\n{block.text}END_OF_PROGRAM"
    text = block.text
    if "sqlite3" in text and shutil.which("sqlite3") is None:
        text = text[: text.index("sqlite3")]
    run = "$(ls my_tasks/runs | tail -1)"
    text = text.replace(
        "RUN_DIR/checkpoints/step-00000020", "$(ls -d RUN_DIR/checkpoints/* | tail -1)"
    )
    text = text.replace("RUN_DIR", "my_tasks/runs/RUN_ID").replace("RUN_ID", run)
    # An export refuses a folder that is there.
    return text.replace("millrace export", "rm -rf models/mine; millrace export")


def test_every_command_of_the_walk_does_what_its_page_says(clone: Path) -> None:
    script = clone / "walk.sh"
    script.write_text(_script(), encoding="utf-8")
    done = subprocess.run(
        [*NAMESPACES, "bash", str(script)], cwd=clone, capture_output=True, text=True, timeout=1700
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    parts = dict(re.findall(r"^WALK (\S+(?: end)?)\n(.*?)(?=^WALK |\Z)", done.stdout, re.M | re.S))
    assert list(parts) == [*(str(block) for block in walked()), f"{walked()[0]} end"]
    for block in walked():
        if "millrace run" in block.text:
            assert "finished" in parts[str(block)]
            assert "held-out pass rate" in parts[str(block)]
    assert "ray_millrace_run_step" in parts[str(walked()[0])]
