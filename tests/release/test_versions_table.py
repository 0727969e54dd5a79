"""The table of versions that go together says what is pinned, and what these tests run on."""

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")


def _rows() -> list[list[str]]:
    _, _, section = PAGE.partition("| Millrace | Python |")
    lines = [line for line in section.partition("\n\n")[0].splitlines() if line.startswith("| ")]
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines
    ]


def test_the_tested_row_is_what_runs_this_test() -> None:
    (tested,) = (row for row in _rows() if row[5].startswith("all,"))
    millrace, _, ray, vllm, torch, _ = tested
    assert millrace == PROJECT["version"]
    assert ray == version("ray")
    name, number = vllm.split()
    assert number == version(name)
    assert torch == version("torch").partition("+")[0]


def test_every_row_has_the_versions_that_are_pinned() -> None:
    pins = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cpu"]]
    pins += PROJECT["optional-dependencies"]["cuda"]
    for row in _rows():
        if row[2:4] == ["none", "none"]:  # tests that need neither
            continue
        assert f"ray[default,serve]=={row[2]}" in pins
        assert "==".join(row[3].split()) in pins


def test_this_python_is_in_the_table() -> None:
    pythons = {one for row in _rows() for one in row[1].split(", ")}
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in pythons
    first, last = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    assert pythons == {f"3.{minor}" for minor in range(int(first), int(last))}
