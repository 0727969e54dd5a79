"""The tables of CONTRIBUTING.md name folders that there are, and all of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, its head left out."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


def _paths(cell: str) -> list[str]:
    """Paths and commands in backticks; options are no paths."""
    words = [word for code in re.findall(r"`(.+?)`", cell) for word in code.split()]
    return [word for word in words if not word.startswith("-")]


def _packages(folder: Path) -> set[str]:
    found = folder.iterdir()
    return {path.name for path in found if path.is_dir() and any(path.glob("*.py"))}


def test_every_folder_has_risks_and_tests() -> None:
    rows = _rows("What to look at in a change")
    named = {path for row in rows for path in _paths(row[0])}
    assert {path for path in named if not (ROOT / path).is_dir()} == set()
    assert {f"services/{name}" for name in _packages(ROOT / "services")} <= named
    tops = {"benchmarks", "deploy", "docs", "examples", "millrace_tools", "tests"}
    assert tops <= named
    assert all(len(row) == 3 and row[1] and row[2] for row in rows)


def test_the_tests_to_run_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)) | {"make"}
    for row in _rows("What to look at in a change"):
        missing = [
            one for one in _paths(row[2]) if one not in targets and not (ROOT / one).exists()
        ]
        assert missing == [], row


def test_every_folder_of_tests_is_described() -> None:
    named = {path for row in _rows("Tests") for path in _paths(row[0])}
    own = {f"tests/{name}" for name in _packages(ROOT / "services")}
    described = {path for path in named if path != "tests/<service>"}
    assert {path for path in described if not (ROOT / path).is_dir()} == set()
    assert {f"tests/{name}" for name in _packages(ROOT / "tests")} <= described | own
