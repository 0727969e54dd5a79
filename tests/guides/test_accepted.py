"""What is said to have run is in a report, and every report is shown."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_accepted.py"))
PAGE = ROOT / "docs" / "accept.md"
HINT = "run `python docs/make_accepted.py`"


def test_the_table_is_that_of_the_reports() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MAKER["page"](text) == text, HINT


def test_the_page_of_each_report_is_that_of_its_json() -> None:
    pages = MAKER["pages"]()
    assert pages
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, HINT


def test_a_report_that_is_kept_is_of_a_whole_acceptance_and_names_no_host() -> None:
    names = {one.name for one in MAKER["STAGES"]}
    for path, report in MAKER["reports"]().items():
        assert not report.quick, path
        assert {one.name for one in report.stages} == names, path
        assert not re.search(r"/(home|root|tmp|work)/|https?://", report.text), path


def test_every_stage_is_in_the_guide() -> None:
    guide = PAGE.read_text(encoding="utf-8").partition("## What has run where")[0]
    for stage in MAKER["STAGES"]:
        assert f"`{stage.name}`" in guide, stage.name


def test_gpus_are_said_to_be_missing_for_as_long_as_no_report_has_one() -> None:
    with_gpu = any(report.hardware.gpus for report in MAKER["reports"]().values())
    said = "No machine with a GPU" in PAGE.read_text(encoding="utf-8")
    assert said != with_gpu, "take the sentences out of docs/accept.md"


def test_a_guide_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places"):
        MAKER["page"]("# Proving a machine\n")
