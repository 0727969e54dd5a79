"""The diagrams are drawn from their sources, shown on a page, and name what the code names."""

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest
import yaml

from services.ledger.sample_group import Ending
from services.orchestrator.core.open_groups import Stage
from services.protocol.weights.weight_bus import (
    CommitWeights,
    Phase,
    ReplicaState,
    SendWeights,
    StageWeights,
)

ROOT = Path(__file__).parents[2]
DIAGRAMS = ROOT / "docs" / "diagrams"
DRAWN = sorted(DIAGRAMS.glob("*.dot"))
SVGS = sorted(DIAGRAMS.glob("*.svg"))
OTHER_SOURCES = {"schedules": ROOT / "benchmarks" / "schedules" / "picture.py"}
MAKER = runpy.run_path(str(DIAGRAMS / "draw.py"))


def _bold(name: str) -> set[str]:
    """What a diagram has in bold: the names of things."""
    return set(re.findall(r"<b>([\w ]+)</b>", (DIAGRAMS / f"{name}.dot").read_text()))


@pytest.mark.parametrize("svg", SVGS, ids=lambda path: path.stem)
def test_a_diagram_is_drawn_from_its_source_as_it_is_now(svg: Path) -> None:
    source = OTHER_SOURCES.get(svg.stem, svg.with_suffix(".dot"))
    digest = MAKER["digest"](source.read_text(encoding="utf-8"))
    hint = f"draw it again: {source.relative_to(ROOT)}"
    assert f"<!-- drawn from {digest} -->" in svg.read_text(encoding="utf-8"), hint


def test_every_source_has_its_diagram_and_every_diagram_its_page() -> None:
    assert {path.stem for path in DRAWN} | set(OTHER_SOURCES) == {path.stem for path in SVGS}
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [svg.name for svg in SVGS if f"diagrams/{svg.name})" not in text] == []


@pytest.mark.parametrize("svg", SVGS, ids=lambda path: path.stem)
def test_a_diagram_fetches_nothing_and_has_a_dark_side(svg: Path) -> None:
    text = svg.read_text(encoding="utf-8")
    fetched = re.findall(r"""(?:href|src)=["']([^"']+)|url\(([^)]+)\)""", text)
    assert [one for pair in fetched for one in pair if one and not one.startswith("#")] == []
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_diagrams_name_what_the_code_names() -> None:
    deployed = yaml.safe_load((ROOT / "deploy" / "laptop.yaml").read_text())["applications"]
    assert _bold("services") == {one["name"] for one in deployed}
    stages = {stage.name.lower() for stage in Stage}
    assert _bold("sample_group") == stages | {"training"} | set(get_args(Ending))
    assert _bold("lease") == {str(state) for state in ReplicaState}
    phases = {str(phase) for phase in Phase}
    assert phases <= _bold("weight_push")
    push = (DIAGRAMS / "weight_push.dot").read_text()
    assert [one.__name__ for one in (SendWeights, StageWeights, CommitWeights) if
            f'"{one.__name__}"' not in push] == []  # fmt: skip
