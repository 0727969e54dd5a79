"""What is left untried on some machines is on a list."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.not_tried import _ALLOWED

TESTS = Path(__file__).parents[1]
_SKIPPING = {"skip", "skipif", "importorskip"}


def test_every_reason_that_is_written_in_a_test_is_on_the_list() -> None:
    reasons = {reason for path in TESTS.rglob("*.py") for reason in _reasons(path)}
    assert "only root can become nobody" in reasons
    assert sorted(reason for reason in reasons if not _ALLOWED.fullmatch(reason)) == []


def test_a_new_reason_fails_and_known_ones_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('_', range(3))\n"
        "def test_known(_): pytest.skip('no /dev/shm')\n"
        "@pytest.mark.skipif(True, reason='needs g++')\n"
        "def test_marked(): ...\n"
        "def test_new(): pytest.skip('no time')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.not_tried", str(tmp_path)]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "-p", "no:cacheprovider"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1
    assert "is not in" in done.stdout
    assert "1 failed, 4 skipped" in done.stdout.splitlines()[-1]
    told = done.stdout.partition("Not tried here: 4\n")[2].splitlines()[:2]
    assert [line.split(maxsplit=1) for line in told] == [["3", "no /dev/shm"], ["1", "needs g++"]]


def _reasons(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in _SKIPPING:
            continue
        given = [word.value for word in node.keywords if word.arg == "reason"]
        if node.func.attr == "skip":
            given += node.args[:1]
        yield from (
            one.value
            for one in given
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )
