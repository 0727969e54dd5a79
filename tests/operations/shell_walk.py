"""Blocks of the guides, typed one after another on a machine of their own, with a clock.

Namespaces give the shell a loopback, processes and a /tmp/ray that nobody shares, so that the
commands stand as they are: their ports are free, and `ray stop` ends this Ray alone.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.guides.blocks import ROOT

NAMESPACES = ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
# SIOCSIFFLAGS with IFF_UP and IFF_RUNNING: what `ip link set lo up` does, without iproute2.
_LOOPBACK = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0x41))"
)
_PREAMBLE = f"""set -eo pipefail
exec 2>&1
PATH=$PWD/.venv/bin:$PATH
mkdir home sessions && mkdir -p /tmp/ray && mount --bind sessions /tmp/ray
export HOME=$PWD/home PYTHONPATH=$PWD RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1
python -c "{_LOOPBACK}"
"""
_MARK = "WALK "
_TREE = (
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "services",
    "millrace_tools",
    "Makefile",
    "README.md",
    "pyproject.toml",
)


@dataclass(frozen=True, kw_only=True)
class Typed:
    """One step.

    Attributes:
        seconds: until the shell was ready for the next.
        said: standard output and errors.
    """

    name: str
    seconds: float
    said: str


def why_no_namespaces() -> str | None:
    """None if they can be made here."""
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True)
    return f"run as root: {tried.stderr.strip()}" if tried.returncode else None


def copy_clone(folder: Path) -> None:
    """Make a folder like a clone in which `make` has installed everything."""
    for name in _TREE:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            leave = shutil.ignore_patterns("__pycache__", "runs", "tasks.jsonl")
            shutil.copytree(source, target, ignore=leave)
        else:
            shutil.copy(source, target)
    environment = folder / ".venv"
    environment.mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != "ready":
            (environment / path.name).symlink_to(path)
    (environment / "ready").touch()  # newer than pyproject.toml: `make` installs nothing


def write_files(page: str, folder: Path) -> None:
    """The files that a page shows: a path of two parts in backticks before a block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, content in re.findall(r"`(\w+/[\w.]+)`:\n\n```\w+\n(.*?)```", text, re.S):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def walk(clone: Path, steps: Iterable[tuple[str, str]], *, most_s: float) -> list[Typed]:
    """Type the steps, (name, text), into one shell in a clone with `.venv`.

    Raises:
        AssertionError: one failed, or they took too long; with the end of what was said.
    """
    return _typed(clone, _PREAMBLE, steps, [*NAMESPACES, "bash"], os.environ, most_s)


def walk_afresh(folder: Path, steps: Iterable[tuple[str, str]], *, most_s: float) -> list[Typed]:
    """As `walk`, in an empty folder, with this machine's network and no cache of packages."""
    home = folder / "home"
    home.mkdir()
    fresh = {"HOME": str(home), "UV_CACHE_DIR": str(home), "PIP_NO_CACHE_DIR": "1"}
    leave = ("PYTHONPATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in leave}
    return _typed(folder, "set -eo pipefail\nexec 2>&1", steps, ["bash"], kept | fresh, most_s)


def _typed(
    folder: Path,
    preamble: str,
    steps: Iterable[tuple[str, str]],
    shell: Sequence[str],
    environment: Mapping[str, str],
    most_s: float,
) -> list[Typed]:
    script = folder / "walk.sh"
    marked = [f"echo {shlex.quote(_MARK + name)}\n{text}" for name, text in steps]
    script.write_text("\n".join([preamble, *marked, f"echo {_MARK}end\n"]), encoding="utf-8")
    lines: list[tuple[float, str]] = []
    command = ["timeout", f"{most_s:g}", *shell, str(script)]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as typing:
        assert typing.stdout is not None
        for line in typing.stdout:
            lines.append((time.monotonic(), line))
    said = "".join(line for _, line in lines)
    assert typing.returncode == 0, f"status {typing.returncode}: {said[-6000:]}"
    marks = [number for number, (_, line) in enumerate(lines) if line.startswith(_MARK)]
    return [
        Typed(
            name=lines[mark][1].removeprefix(_MARK).rstrip("\n"),
            seconds=lines[following][0] - lines[mark][0],
            said="".join(line for _, line in lines[mark + 1 : following]),
        )
        for mark, following in itertools.pairwise(marks)
    ]
