"""`make test` says at its end what passed, what failed and what was not tried."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TESTS = """
import tempfile
import pytest
def test_passes(): ...
def test_fails(): assert False
def test_skips(): pytest.skip("no /dev/shm")
"""
_LEAVING = "import tempfile\ndef test_leaves(): tempfile.mkdtemp(prefix='left-')"
_CRASHING = "import atexit, os\natexit.register(os.abort)\ndef test_passes(): ..."
_CLEAN = "import tempfile\ndef test_tidies():\n    with tempfile.TemporaryDirectory(): ..."


def test_the_last_line_counts_all_parts(tmp_path: Path) -> None:
    assert _part(tmp_path, "mixed", _TESTS).returncode == 1
    assert _part(tmp_path, "clean", _CLEAN).returncode == 0
    done = _run(tmp_path, "tests.closing", "0", "mixed", "clean")
    assert done.returncode == 1
    *lines, last = done.stdout.splitlines()
    assert last.startswith("make test: 2 passed, 1 failed, 1 not tried, in ")
    assert "FAILED test_mixed::test_fails" in lines
    assert "     1  no /dev/shm" in lines
    assert _run(tmp_path, "tests.closing", "0", "clean").returncode == 0


def test_a_part_fails_that_leaves_a_file_or_no_report(tmp_path: Path) -> None:
    left = _part(tmp_path, "leaving", _LEAVING)
    assert left.returncode == 1
    assert "left in the temporary folder by leaving:\n  left-" in left.stdout
    done = _run(tmp_path, "tests.closing", "0", "leaving", "missing")
    assert done.returncode == 1
    assert "FAILED leaving::left in the temporary folder" in done.stdout
    assert "FAILED missing: no report" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("make test: 1 passed, 2 failed, 0 not tried")


def test_a_part_that_crashes_after_its_tests_says_at_the_end_of_all_how(tmp_path: Path) -> None:
    assert _part(tmp_path, "crashing", _CRASHING).returncode != 0
    done = _run(tmp_path, "tests.closing", "0", "crashing")
    assert "FAILED crashing::pytest: ended with status -6" in done.stdout
    assert "Fatal Python error: Aborted" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("make test: 1 passed, 1 failed, 0 not tried")


def _part(folder: Path, name: str, source: str) -> subprocess.CompletedProcess[str]:
    (folder / f"test_{name}.py").write_text(source)
    options = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    return _run(folder, "tests.part", name, f"test_{name}.py", *options)


def _run(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
