"""ARCHITECTURE.md shows the folders that there are, and journeys that the code makes."""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = ("services", "millrace_tools")
MAKER = runpy.run_path(str(ROOT / "docs" / "make_tree.py"))
LIMITS = {
    "A chat, from HTTP to tokens": 15,
    "A prompt to its gradient": 16,
    "A weight to the engine": 14,
    "A reward job": 14,
    "A run file to a started run": 10,
    "A ledger entry": 1,
}
"""The most files that a journey may cross."""
JOURNEYS = dict(re.findall(r"^### (.+)\n\n((?:.+\n|\n(?=\|))+)", PAGE, re.M))
CROSSINGS = ("HTTP", "Ray", "process", "long poll", "thread")
"""How a journey comes from a file to one that does not import it."""


def test_the_tree_is_up_to_date() -> None:
    assert MAKER["page"](PAGE) == PAGE, "run `python docs/make_tree.py`"


def test_every_folder_says_what_it_is() -> None:
    packages = [path for one in PACKAGES for path in (ROOT / one).rglob("__init__.py")]
    silent = [
        path
        for path in packages
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_the_private_interfaces_of_vllm_are_all_listed() -> None:
    folder = ROOT / "services" / "rollout_server" / "engine" / "vllm_patches"
    text = PAGE.partition("## Private interfaces of vLLM")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+\.py)` \|", text, re.M))
    assert listed == {path.name for path in folder.rglob("*.py")} - {"__init__.py"}


def test_every_journey_is_on_the_page() -> None:
    assert JOURNEYS.keys() == LIMITS.keys()


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_crosses_few_files(name: str) -> None:
    files = [file for file, _ in _rows(name)]
    assert len(set(files)) == len(files)
    assert 0 < len(files) <= LIMITS[name]


@pytest.mark.parametrize("name", JOURNEYS)
def test_each_file_of_a_journey_leads_to_the_next(name: str) -> None:
    """By an import, or over a boundary by a word that both sides have."""
    before: list[str] = []
    for file, about in _rows(name):
        assert (ROOT / file).is_file(), f"{file} does not exist"
        crossing = re.match(rf"({'|'.join(CROSSINGS)}) `([^`]+)`", about)
        if crossing:
            word = crossing[2]
            assert word in _text(file), f"{file} does not have {word}"
            assert any(word in _text(one) for one in before), f"nothing before {file} has {word}"
        elif before:
            linked = _module(file) in _imported(before) or any(
                _module(one) in _imported([file]) for one in before
            )
            assert linked, f"{file} has no import in common with what stands before it"
        before.append(file)


def _rows(name: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([\w/]+\.py)` \| (.+) \|$", JOURNEYS[name], re.M)


def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(files: list[str]) -> set[str]:
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(_text(file))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def test_every_invariant_has_a_test_and_each_that_is_named_exists() -> None:
    table = PAGE.partition("## What always holds")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| .*$", table, re.M)
    assert rows == [str(number) for number in range(1, 16)]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for row in re.findall(r"^\| \d+ \| .*$", table, re.M):
        named = re.findall(r"`(test_\w+)`", row) or re.findall(r"`(nothing_hangs)`", row)
        assert named, row
        for name in named:
            assert re.search(rf"def {name}\(|def test_\w*{name}\w*\(", sources), name
