"""The contract of `accept.json`, and the page that is made from it."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from millrace_tools.accept.page import page
from millrace_tools.accept.report import Curve, Figure, Hardware, Report, StageReport, Verdict
from services.protocol.errors import InvalidInput

REPORT = Report(
    millrace="0.1.0",
    made_at="2026-01-31 12:00",
    quick=False,
    hardware=Hardware(
        cpu="a processor",
        cores=16,
        memory_gib=128.0,
        gpus=("NVIDIA H100", "NVIDIA H100"),
        gpu_gib=80.0,
        driver="570.1",
        system="Linux 6.1",
    ),
    stages=(
        StageReport(
            name="learning-separate",
            purpose="it learns",
            verdict=Verdict.PASSED,
            seconds=61.5,
            figures=(Figure(name="train steps", value=30.0),),
            curves=(Curve(title="Mean reward", x=(1.0, 2.0, 3.0), y=(0.2, 0.4, 0.8)),),
        ),
        StageReport(
            name="push-nccl",
            purpose="versions arrive",
            verdict=Verdict.FAILED,
            seconds=3.0,
            reason="version 3: <digest> of bucket 0",
        ),
        StageReport(
            name="sleep",
            purpose="it sleeps",
            verdict=Verdict.NOT_TRIED,
            seconds=0.0,
            reason="engines on CPUs cannot sleep",
        ),
    ),
)


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "accept.json"
    path.write_text(REPORT.text, encoding="utf-8")
    assert Report.read(path) == REPORT
    assert [one.name for one in REPORT.failed] == ["push-nccl"]
    assert REPORT.count(Verdict.NOT_TRIED) == 1


def test_figures_have_four_digits_and_counts_are_whole() -> None:
    found = [Figure(name="x", value=value).value for value in (1.234567, 65432.1, 123456, "A")]
    assert found == [1.235, 65430.0, 123456.0, "A"]


def test_its_shape_is_that_of_its_version() -> None:
    data = json.loads(REPORT.text)
    assert data["schema_version"] == 1
    assert list(data) == ["schema_version", "millrace", "made_at", "quick", "hardware", "stages"]
    assert list(data["stages"][0]) == [
        *("name", "purpose", "verdict", "seconds", "reason", "figures", "curves")
    ]
    assert {one["verdict"] for one in data["stages"]} == {"passed", "failed", "not tried"}


@pytest.mark.parametrize(
    "change", [{"schema_version": 2}, {"hostname": "secret"}, {"stages": [{"name": "x"}]}]
)
def test_another_shape_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "accept.json"
    path.write_text(json.dumps(json.loads(REPORT.text) | change), encoding="utf-8")
    with pytest.raises(InvalidInput, match=f"{path}: {next(iter(change))}"):
        Report.read(path)


def test_a_report_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no\.json"):
        Report.read(tmp_path / "no.json")


def test_the_page_shows_every_stage_and_the_curve_and_loads_nothing() -> None:
    found = page(REPORT)
    assert found == page(REPORT)
    assert "script" not in _tags(found)
    assert {"table", "polyline"} <= _tags(found)
    for stage in REPORT.stages:
        assert f"<td>{stage.name}</td>" in found
    assert "version 3: &lt;digest&gt; of bucket 0" in found
    assert "1 failed: 2 x NVIDIA H100; 16 cores, 128 GiB; a processor" in found


def _tags(text: str) -> set[str]:
    tags: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)

    Tags().feed(text)
    return tags
