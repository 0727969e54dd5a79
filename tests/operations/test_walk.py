"""What README and guides say to type, typed: in order, on a machine of its own."""

import shutil
from pathlib import Path

import pytest

from tests.guides.blocks import SHELL, Block
from tests.guides.walk import walked
from tests.operations.shell_walk import copy_clone, walk, why_no_namespaces, write_files

pytestmark = pytest.mark.timeout(1800)
MOST_S = 1700.0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone with `make` done in it, and the files of docs/your-own-tasks.md."""
    if (why := why_no_namespaces()) is not None:
        pytest.skip(f"no namespaces here, {why}")
    copy_clone(tmp_path)
    write_files("docs/your-own-tasks.md", tmp_path)
    return tmp_path


def _steps() -> list[tuple[str, str]]:
    """The blocks; the last line of the first ends the cluster and comes last."""
    first, *others = walked()
    *opening, ending = first.text.strip().splitlines()
    typed = [(str(block), _typed(block)) for block in others]
    return [(str(first), "\n".join(opening)), *typed, (f"{first} end", ending)]


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
    parts = {one.name: one for one in walk(clone, _steps(), most_s=MOST_S)}
    for block in walked():
        if "millrace run" in block.text:
            assert "finished" in parts[str(block)].said
            assert "held-out pass rate" in parts[str(block)].said
    assert "ray_millrace_run_step" in parts[str(walked()[0])].said
