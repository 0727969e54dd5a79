"""Examines GPUs and their links to each other and to other nodes, by `nvidia-smi` and /sys."""

import os
import re
import subprocess
import sys
from pathlib import Path

from millrace_tools.doctor import pin_probe
from millrace_tools.doctor.facts import Gpu, Gpus
from services.transport.network_interfaces import network_interfaces

_SMI_S = _PIN_S = 20.0
_QUERY = "--query-gpu=name,memory.total,memory.used,driver_version"
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # nvidia-smi underlines headings, piped or not


def gpus() -> Gpus:
    """The GPUs of this machine; without any the probe is fast."""
    devices = tuple(sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*")))
    seen: tuple[Gpu, ...] = ()
    text, problem = _smi(_QUERY, "--format=csv,noheader,nounits")
    if not problem:
        seen = read_gpus(text)
    topology = _smi("topo", "-m")[0] if len(seen) > 1 else ""
    active, inactive = rdma_ports(Path("/sys/class/infiniband"))
    return Gpus(
        devices=devices,
        seen=seen,
        problem=problem if devices else "",
        links=read_links(topology),
        rdma=active,
        inactive_rdma=inactive,
        interfaces=network_interfaces(),
        nccl=tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("NCCL_"))),
        pin_problem=pin_problem() if devices else "",
    )


def pin_problem() -> str:
    """Why CUDA's driver does not register host memory; empty: it does."""
    command = [sys.executable, "-I", "-S", pin_probe.__file__]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    if done.returncode:
        return f"the probe ended with status {done.returncode}"
    return done.stdout.strip()


def read_gpus(text: str) -> tuple[Gpu, ...]:
    """The answer of `nvidia-smi` to the query, a line a GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    return tuple(
        Gpu(name=name, memory_mib=_number(total), used_mib=_number(used), driver=driver)
        for name, total, used, driver in rows
    )


def _number(cell: str) -> int:
    return int(cell) if cell.isdigit() else 0  # `[N/A]` where memory is the machine's own


def read_links(topology: str) -> tuple[str, ...]:
    """Links of each pair of GPUs once, from the matrix of `nvidia-smi topo -m`."""
    lines = [_COLOURS.sub("", line).split() for line in topology.splitlines()]
    rows = [cells for cells in lines if cells and re.fullmatch(r"GPU\d+", cells[0])]
    rows = [cells for cells in rows if "X" in cells]  # the heading has none
    return tuple(
        cells[column + 1]
        for row, cells in enumerate(rows)
        for column in range(row + 1, len(rows))
        if _LINK.fullmatch(cells[column + 1])
    )


def rdma_ports(infiniband: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Active and other ports of RDMA devices."""
    active: list[str] = []
    inactive: list[str] = []
    for state in sorted(infiniband.glob("*/ports/*/state")):
        name = f"{state.parts[-4]}/{state.parts[-2]}"
        try:
            (active if "ACTIVE" in state.read_text() else inactive).append(name)
        except OSError:
            inactive.append(name)
    return tuple(active), tuple(inactive)


def _smi(*arguments: str) -> tuple[str, str]:
    """Its output and its error."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            timeout=_SMI_S,
            check=False,
        )
    except FileNotFoundError:
        return "", "nvidia-smi is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"nvidia-smi: {error}"
    problem = (done.stderr or done.stdout).strip().splitlines()
    return done.stdout, "" if done.returncode == 0 else (problem or ["nvidia-smi failed"])[0]
