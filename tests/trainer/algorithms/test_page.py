"""docs/algorithms.md is what the docstrings say, and the docstrings name their sources."""

import ast
import runpy
from pathlib import Path

import pytest

from services.protocol.run.algorithm import LOSSES

ROOT = Path(__file__).parents[3]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_algorithms.py"))
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
FOLDER = ROOT / "services" / "trainer" / "algorithms"


def test_the_page_is_up_to_date() -> None:
    assert MAKER["page"]() == PAGE, "run `python docs/make_algorithms.py`"


def test_the_page_has_every_file_of_maths() -> None:
    shown = {name for names in MAKER["PARTS"].values() for name in names}
    assert shown == {path.stem for path in FOLDER.rglob("*.py")} - {
        *("__init__", "tokens", "advantages", "losses")
    }


ADVANTAGES = (
    *("grpo", "dr_grpo", "rloo", "maxrl", "lite_ppo", "best", "reinforce_plus_plus", "dapo"),
    "top_entropy",
)


@pytest.mark.parametrize(
    "name", [*ADVANTAGES, *LOSSES, "aggregation", "correction", "sequence_mask"]
)
def test_every_algorithm_names_its_paper(name: str) -> None:
    tree = ast.parse(next(FOLDER.rglob(f"{name}.py")).read_text(encoding="utf-8"))
    texts = [
        ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)
    ]
    assert any("arXiv" in text for text in texts)
