"""docs/first-changes.md, followed to the letter: its changes apply, its commands pass."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides.blocks import FIRST_CHANGES, ROOT, Block, blocks

COPIED = (
    *("benchmarks", "deploy", "docs", "environments", "examples", "millrace_tools", "services"),
    "tests",
)
"""All Python files: ruff sorts imports by the folders that there are."""


def _walk_throughs() -> dict[str, list[Block]]:
    """The blocks under each heading that has any."""
    lines = (ROOT / FIRST_CHANGES).read_text(encoding="utf-8").splitlines()
    found: dict[str, list[Block]] = {}
    for block in blocks(FIRST_CHANGES):
        headings = [line for line in lines[: block.line] if line.startswith("## ")]
        found.setdefault(headings[-1].removeprefix("## "), []).append(block)
    return found


WALK_THROUGHS = _walk_throughs()


def test_there_is_a_grader_a_loss_and_a_metric() -> None:
    kinds = [re.findall(r"A new (\w+)", heading) for heading in WALK_THROUGHS]
    assert kinds == [["grader"], ["loss"], ["metric"]]


@pytest.mark.parametrize("heading", WALK_THROUGHS)
def test_a_first_change_passes_its_own_tests(heading: str, tmp_path: Path) -> None:
    clone = _copy(tmp_path / "clone")
    done = []
    for block in WALK_THROUGHS[heading]:
        language, _, title = block.language.partition(" title=")
        if language == "diff":
            _run(["git", "apply", "--verbose", "-"], clone, block)
        elif language == "python":
            file = clone / title.strip('"')
            assert not file.exists(), f"{block}: {title} is no new file"
            file.write_text(block.text, encoding="utf-8")
        else:
            assert language == "bash", f"{block}: {language}"
            for words in block.commands:
                _run([*_program(words[0]), *words[1:]], clone, block)
                done.append(words[0])
    assert {"pytest", "ruff"} <= set(done)


def _copy(clone: Path) -> Path:
    unread = shutil.ignore_patterns("__pycache__", "problems", "*.png", "*.svg")
    for name in COPIED:
        shutil.copytree(ROOT / name, clone / name, ignore=unread)
    shutil.copy(ROOT / "pyproject.toml", clone)
    return clone


def _program(name: str) -> list[str]:
    return [sys.executable] if name == "python" else [sys.executable, "-m", name]


def _run(command: list[str], clone: Path, block: Block) -> None:
    # Python finds the copy first, and git no repository around it, of which it would be a part.
    environment = os.environ | {
        "PYTHONPATH": str(clone),
        "GIT_CEILING_DIRECTORIES": str(clone.parent),
    }
    done = subprocess.run(
        command,
        cwd=clone,
        env=environment,
        input=block.text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if done.returncode:
        words = " ".join(command)
        hint = f"{block}: change this block, or the code, until `{words}` succeeds"
        pytest.fail(f"{hint}\n{block.text}\n{done.stdout[-8000:]}", pytrace=False)
