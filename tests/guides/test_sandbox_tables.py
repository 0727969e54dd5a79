"""What the pages on sandboxes say of speed, memory and learning is what benchmarks/ recorded."""

import runpy
from pathlib import Path

MAKER = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_sandboxes.py"))


def test_the_tables_are_those_of_the_records() -> None:
    for path, page in MAKER["filled"]().items():
        hint = f"{path.name}: run `python docs/make_sandboxes.py`"
        assert page == path.read_text(encoding="utf-8"), hint
