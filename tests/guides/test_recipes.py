"""docs/recipes.md: whole run files, and a table that knows every preset."""

import re

import pytest
import yaml

from services.protocol.run.algorithm_preset import ALGORITHM_PRESETS
from services.protocol.run.orchestrator import RunConfig
from tests.guides.blocks import ROOT, Block, blocks

PAGE = "docs/recipes.md"
RUN_FILES = [one for one in blocks(PAGE) if one.text.startswith("name:")]
LONGEST = 12


def test_there_is_a_run_file_for_every_recipe() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    recipes = re.findall(r"(?m)^## (.+)$", text)
    assert len(RUN_FILES) == len(recipes) - 1, "all headings but the table's"


@pytest.mark.parametrize("block", RUN_FILES, ids=str)
def test_a_recipe_is_a_short_run_file_that_needs_nothing_else(block: Block) -> None:
    run = RunConfig.from_data(yaml.safe_load(block.text), source="recipe")
    assert run.model == "my-model"
    assert len(block.text.splitlines()) <= LONGEST


def test_the_table_knows_every_preset() -> None:
    table = (ROOT / PAGE).read_text(encoding="utf-8").partition("## GRPO on")[0]
    named = set(re.findall(r"`([a-z_]+)`", table))
    assert ALGORITHM_PRESETS.keys() - named == set()
