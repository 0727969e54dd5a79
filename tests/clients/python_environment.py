"""Environments of Python that packages are installed into, apart from the one that runs this."""

import os
import subprocess
import sys
from pathlib import Path

INSTALL_S = 1200.0


def do(*command: str) -> str:
    """Run a command to its end, where uv is known; returns its output."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, env=environment, timeout=INSTALL_S, check=True, capture_output=True, text=True
    ).stdout


def python_with(packages: tuple[str, ...], folder: Path, version: str = sys.executable) -> Path:
    """The interpreter of an environment with these packages, made unless `folder` has one.

    It is of this version, or the same one that runs this.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        do("uv", "venv", "--quiet", "--python", version, str(folder))
        do("uv", "pip", "install", "--quiet", "--python", str(python), *packages)
    return python


def version_of(package: str, python: Path) -> str:
    """Of an installed package, with or without extras or a version in its name."""
    name = package.split("[")[0].split("==")[0]
    asked = f"import importlib.metadata as m; print(m.version({name!r}))"
    return do(str(python), "-c", asked).strip()
