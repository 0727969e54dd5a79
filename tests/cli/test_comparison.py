"""`millrace compare` and `millrace report`."""

from pathlib import Path

import pytest

from millrace_tools.main import main
from services.page.run_store import FolderRunStore
from tests.page.several_runs import make_runs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return make_runs(tmp_path / "runs")


def test_the_terminal_shows_the_figures_of_the_page(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs["slow"]), "fast"]) == 0, "a path, and a name in runs/"
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[:2] == [["A", "fast"], ["B", "slow"]]
    assert ["best", "pass", "rate", "90.0%", "*", "40.0%"] in shown
    assert ["algorithm.learning_rate", "1e-06", "0.0001"] in shown
    table = FolderRunStore(runs["slow"].parent).comparison(["slow", "fast"]).table()
    for figure in table["figures"]:
        texts = [run["texts"][figure["name"]] for run in table["runs"]]
        words = [word for text in (figure["title"], *texts) for word in text.split()]
        assert words in [[word for word in line if word != "*"] for line in shown], figure


def test_runs_with_the_same_run_file_are_said_to_be_so(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (runs["slow"] / "config.yaml").write_bytes((runs["fast"] / "config.yaml").read_bytes())
    assert main(["compare", "slow", "fast"]) == 0
    assert "The run files are the same." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["fast"], "error: RUN: 'fast' -> Give two runs or more to compare."),
        (["fast", "nobody"], "error: RUN: 'nobody' -> There is no such folder."),
        (["fast", "runs"], "error: RUN: 'runs' -> It is no run directory"),
    ],
)
def test_what_cannot_be_compared_is_named(
    runs: dict[str, Path], names: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *names]) == 2
    assert said in capsys.readouterr().err


def test_a_report_is_written_and_what_it_is_about_can_be_one_run(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "fast"]) == 0
    assert "millrace-report.html" in capsys.readouterr().out
    assert "fast · Millrace" in Path("millrace-report.html").read_text(encoding="utf-8")
    assert main(["report", "fast", "slow", "--output", "both.html"]) == 0
    assert "2 runs side by side" in Path("both.html").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_and_a_wrong_smoothing_are_named(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "fast", "--output", "none/report.html"]) == 2
    assert "error: --output: 'none/report.html'" in capsys.readouterr().err
    assert main(["report", "fast", "--smoothing", "1"]) == 2
    assert "error: --smoothing: 1.0 -> Give a number from 0 to 0.99." in capsys.readouterr().err
