"""A table of mounts in place of the kernel's."""

from pathlib import Path

import pytest

from services import file_system


def pretend_mounts(monkeypatch: pytest.MonkeyPatch, file: Path, *mounts: str) -> None:
    """Have each folder on the mounts given, each as `FOLDER KIND OPTIONS`."""
    lines = (mount.split(" ") for mount in mounts)
    text = "".join(
        f"{number} 1 0:{number} / {folder} rw,relatime shared:1 - {kind} server:/x {options}\n"
        for number, (folder, kind, options) in enumerate(lines)
    )
    file.write_text(text)
    monkeypatch.setattr(file_system, "MOUNTS", file)
