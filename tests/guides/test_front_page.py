"""The first lines of README and of the site say what this is, for whom, why, and the limit."""

import json
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_moving_picture.py"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_lines_say_what_for_whom_why_and_the_limit(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    first = "\n".join(lines[2:7])
    for wanted in ("reinforcement learning", "engineers and researchers", "verl", "TRL"):
        assert wanted in first
    assert "**Limit: no GPU has run it as a whole yet" in first
    assert "images/demo.svg" in "\n".join(lines[:12])


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run of two steps."""
    steps = [
        {"step": n, "reward": n / 4, "heldout_pass_rate": None, "staleness_max": 1} for n in (1, 2)
    ]
    _write(tmp_path / "metrics.jsonl", steps)
    spans = [
        {"lane": "evaluation", "kind": "evaluate", "start": 10.0, "end": 11.0, "step": 0},
        {"lane": "replica a", "kind": "generate", "start": 11.0, "end": 12.0},
        {"lane": "sandbox n/0", "kind": "score", "start": 12.0, "end": 12.5},
        {"lane": "trainer", "kind": "train", "start": 12.5, "end": 13.0, "step": 1},
        {"lane": "trainer", "kind": "train", "start": 13.5, "end": 14.0, "step": 2},
    ]
    _write(tmp_path / "timeline.jsonl", spans)
    answer = {"step": 1, "messages": [{"role": "user", "content": "a < b & c"}], "reward": 0.0}
    answers = [answer | {"answer": "return a<b", "verdict": "wrong_answer"}]
    _write(tmp_path / "trajectories.jsonl", answers)
    rates = [{"step": n, "pass_at": {"1": rate}} for n, rate in ((0, 0.1), (2, 0.5))]
    _write(tmp_path / "evaluations.jsonl", rates)
    ledger = {"admitted": 4, "trained": 3, "filtered": 1, "expired": 0}
    summary = {"wall_s": 4.0, "ledger": ledger}
    summary |= {"heldout_pass_rate_before": 0.1, "heldout_pass_rate_after": 0.5}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def _texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_moving_picture_shows_what_the_run_recorded(run_dir: Path) -> None:
    svg = MAKER["picture"](MAKER["Recording"].read(run_dir))
    texts = _texts(svg)
    assert "step 1/2  reward 0.25  held-out 0.10  staleness 1" in texts
    assert "4 sample groups = 3 trained + 1 filtered" in texts
    assert "step 1: a < b & c" in texts
    assert svg.count("<rect") == 1 + len(("chart", "lanes")) + 5
    assert "prefers-reduced-motion" in svg


def test_views_of_the_page_follow_the_demo_one_after_the_other(run_dir: Path) -> None:
    svg = MAKER["picture"](MAKER["Recording"].read(run_dir), [b"first", b"second"])
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}image"))) == 2
    assert "@keyframes view0 { 0% { opacity: 0; } 75.00% { opacity: 1; } 87.50% {" in svg
    assert "@keyframes view1 { 0% { opacity: 0; } 87.50% { opacity: 1; } 100.00% {" in svg


def test_the_picture_in_the_repository_is_whole_and_fetches_nothing() -> None:
    svg = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    assert len(_texts(svg)) > 40
    images = list(ElementTree.fromstring(svg).iter(f"{SVG}image"))
    assert len(images) >= 4, "the page"
    assert all(one.attrib["href"].startswith("data:image/png;base64,") for one in images)
    assert svg.count("href") == len(images)
    assert "url(" not in svg
