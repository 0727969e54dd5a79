"""Blocks of the guides, typed one after another on a machine of their own, with a clock.

Namespaces give the shell a loopback, processes and a /tmp/ray that nobody shares, so that the
commands stand as they are: their ports are free, and `ray stop` ends this Ray alone.
"""

import itertools
import re
import shlex
import subprocess
import time
from collections.abc import Iterable
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
    script = clone / "walk.sh"
    marked = [f"echo {shlex.quote(_MARK + name)}\n{text}" for name, text in steps]
    script.write_text("\n".join([_PREAMBLE, *marked, f"echo {_MARK}end\n"]), encoding="utf-8")
    lines: list[tuple[float, str]] = []
    command = ["timeout", f"{most_s:g}", *NAMESPACES, "bash", str(script)]
    with subprocess.Popen(command, cwd=clone, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        for line in shell.stdout:
            lines.append((time.monotonic(), line))
    said = "".join(line for _, line in lines)
    assert shell.returncode == 0, f"status {shell.returncode}: {said[-6000:]}"
    marks = [number for number, (_, line) in enumerate(lines) if line.startswith(_MARK)]
    return [
        Typed(
            name=lines[mark][1].removeprefix(_MARK).rstrip("\n"),
            seconds=lines[following][0] - lines[mark][0],
            said="".join(line for _, line in lines[mark + 1 : following]),
        )
        for mark, following in itertools.pairwise(marks)
    ]
