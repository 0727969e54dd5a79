"""The report: one HTML file."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from services.page.notes import NewNote, RunNotes
from services.page.report.line_chart import ticks
from services.page.report.report import report
from services.page.run_store import FolderRunStore
from tests.page.made_run import HOSTILE, make_run, write_log
from tests.page.several_runs import make_runs


class Reader(HTMLParser):
    """Tags, their attributes, and all text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def of(folder: Path, *runs: str) -> Reader:
    return Reader(report(FolderRunStore(folder).comparison(runs)))


def test_a_report_says_what_became_of_each_run(tmp_path: Path) -> None:
    make_runs(tmp_path)
    read = of(tmp_path, "slow", "broken", "fast")
    assert "3 runs side by side" in read.text
    assert "fast: held-out pass rate 10.0% → 80.0%; 4 of 4 train steps, 9.0 s" in read.text
    assert "algorithm.learning_rate" in read.text
    assert "Traceback: out of memory" in read.text
    charts = [attributes for tag, attributes in read.tags if tag == "svg"]
    assert {one["class"] for one in charts} == {"by-step", "by-time", "by-tokens"}
    assert "A ends at 80.0%" in str(charts[0]["aria-label"])


def test_a_report_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    make_runs(tmp_path)
    document = report(FolderRunStore(tmp_path).comparison(["slow", "fast"]))
    read = Reader(document)
    loading = {"src", "href", "srcset", "data", "action", "style"}
    assert not [name for _, attributes in read.tags for name in attributes if name in loading]
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {t for t, _ in read.tags}
    assert not [name for _, given in read.tags for name in given if name.startswith("on")]
    assert "default-src 'none'; style-src 'sha256-" in document
    assert "url(" not in document
    assert not re.search(r"https?://", document)


def test_what_a_model_wrote_stays_text_in_a_report(tmp_path: Path) -> None:
    make_run(tmp_path)
    read = of(tmp_path, "test-1")
    assert HOSTILE in read.text
    assert not {"img", "script"} & {tag for tag, _ in read.tags}


def test_held_out_answers_stand_before_and_after_next_to_each_other(tmp_path: Path) -> None:
    make_run(tmp_path)
    read = of(tmp_path, "test-1")
    assert "Held-out answers before and after of test-1" in read.text
    assert "passes now" in read.text
    assert "after step 4" in read.text


def test_a_report_has_what_the_run_waited_for_its_alerts_and_notes(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    write_log(path)
    RunNotes(path).add(NewNote(text=f"Larger groups. {HOSTILE}"), step=3, author="ada")
    read = of(tmp_path, "test-1")
    assert "Remarks on test-1" in read.text
    assert "of this time for rollouts" in read.text
    assert "push failed replica a: no answer in 30 s" in read.text
    assert f"Larger groups. {HOSTILE} ada at step 3" in read.text
    assert not {"img", "script"} & {tag for tag, _ in read.tags}


def test_a_run_from_before_held_out_answers_were_kept_shows_those_it_trained_on(
    tmp_path: Path,
) -> None:
    (make_run(tmp_path) / "heldout_answers.jsonl").unlink()
    read = of(tmp_path, "test-1")
    assert "First and newest answers of test-1" in read.text
    assert HOSTILE in read.text


def test_a_run_without_a_step_has_a_report(tmp_path: Path) -> None:
    path = make_runs(tmp_path)["broken"]
    for name in ("metrics", "evaluations"):
        (path / f"{name}.jsonl").unlink()
    read = of(tmp_path, "broken")
    assert "No train step yet." in read.text
    assert "held-out pass rate not measured" in read.text


def test_there_is_no_half_a_step() -> None:
    assert ticks(0.0, 2.1, 1.0) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 40.0, [0.0, 10.0, 20.0, 30.0, 40.0]),
        (-3e-4, 2e-4, [-3e-4, -2e-4, -1e-4, 0.0, 1e-4, 2e-4]),
        (0.0, 90_405.0, [0.0, 20_000.0, 40_000.0, 60_000.0, 80_000.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
