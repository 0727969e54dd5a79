"""What is said of speed is what benchmarks/ measured."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_performance.py"))
HINT = "run `python docs/make_performance.py`"


def test_the_page_is_up_to_date() -> None:
    assert MAKER["page"]() == (ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), HINT


def test_the_table_of_the_readme_is_up_to_date() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert MAKER["readme"](text) == text, HINT


def test_every_baseline_is_shown_or_has_a_page() -> None:
    makers = ("make_performance.py", "make_sandboxes.py")
    source = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in makers)
    guides = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    for path in (ROOT / "benchmarks" / "baselines").glob("*.json"):
        module = path.stem.replace("_", "/", 1)
        shown = f"benchmarks/{module}.py" in guides or f"benchmarks.{path.stem}" in guides
        assert shown or f'"{path.stem}"' in source, path.name
