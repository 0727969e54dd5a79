"""What a killed service leaves in the temporary folder, the next one removes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from services.reward_service.sandbox.scratch_folder import ScratchFolder

_HOLDS = """
from services.reward_service.sandbox.scratch_folder import ScratchFolder
folder = ScratchFolder("scratch-")
print(folder.path, flush=True)
input()
"""
LONG_AGO = (1.0, 1.0)


def test_a_folder_goes_after_its_process_was_killed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        os.utime(theirs, LONG_AGO)
        ScratchFolder("scratch-").remove()
        assert theirs.is_dir()
        holder.kill()
    (tmp_path / "other-folder").mkdir()
    os.utime(tmp_path / "other-folder", LONG_AGO)
    (tmp_path / "scratch-new").mkdir()
    ours = ScratchFolder("scratch-")
    assert set(tmp_path.iterdir()) == {
        ours.path,
        tmp_path / "other-folder",
        tmp_path / "scratch-new",
    }
    ours.remove()
    assert not ours.path.exists()
