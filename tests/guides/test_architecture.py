"""ARCHITECTURE.md shows the folders that there are."""

import ast
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = ("services", "millrace_tools")
MAKER = runpy.run_path(str(ROOT / "docs" / "make_tree.py"))


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
    assert listed == {path.name for path in folder.glob("*.py")} - {"__init__.py"}
