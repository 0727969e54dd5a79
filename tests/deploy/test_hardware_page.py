"""docs/hardware.md says what the sizing says."""

import runpy
from pathlib import Path

import pytest

from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.sizes.hardware import Hardware

ROOT = Path(__file__).parents[2]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_hardware.py"))
cell = MAKER["cell"]


def test_the_page_is_as_its_maker_makes_it() -> None:
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    assert MAKER["page"]() == page, "run `python docs/make_hardware.py`"
    assert "Its cells are estimates" in page


def test_one_gpu_is_enough_if_ranks_and_engines_share_it() -> None:
    one = Hardware(gpus=1, gpu_gib=24)
    assert cell("Qwen/Qwen3-0.6B", one, "shared", None) == "1"
    assert cell("Qwen/Qwen3-4B", one, "shared", 32) == "1"
    assert cell("Qwen/Qwen3-0.6B", one, "separate", None) == "-"


def test_an_adapter_fits_where_the_whole_model_does_not() -> None:
    two = Hardware(gpus=2, gpu_gib=48)
    assert cell("Qwen/Qwen3-8B", two, "separate", None) == "-"
    assert cell("Qwen/Qwen3-8B", two, "separate", 32) == "1 + 1"


def test_moments_in_host_memory_are_marked() -> None:
    two = Hardware(gpus=2, gpu_gib=24)
    assert cell("Qwen/Qwen3-1.7B", two, "shared", None) == "2*"


def test_a_large_engine_takes_several_gpus() -> None:
    eight = Hardware(gpus=8, gpu_gib=80)
    assert cell("Qwen/Qwen3-32B", eight, "separate", 32) == "4 + 2 x 2"
    assert cell("Qwen/Qwen3-32B", eight, "shared", 32) == "4 x 2"


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Qwen/Qwen2.5-0.5B", 0.49),
        ("Qwen/Qwen2.5-1.5B", 1.54),
        ("Qwen/Qwen2.5-3B", 3.09),
        ("Qwen/Qwen2.5-7B", 7.62),
        ("Qwen/Qwen3-0.6B", 0.60),
        ("Qwen/Qwen3-1.7B", 1.72),
        ("Qwen/Qwen3-4B", 4.02),
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen3-14B", 14.77),
        ("Qwen/Qwen3-32B", 32.76),
    ],
)
def test_known_shapes_have_the_parameters_that_their_model_cards_name(
    model: str, billions: float
) -> None:
    counted = KNOWN_SHAPES[model].parameters
    assert counted is not None
    assert counted / 1e9 == pytest.approx(billions, abs=0.01)
