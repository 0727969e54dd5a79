"""Runs side by side: order, changed keys, curves."""

import math
from pathlib import Path

import pytest

from services.page.reading.comparison.changed_keys import changed_keys
from services.page.reading.comparison.comparison import Comparison
from services.page.reading.comparison.curves import smoothed
from services.page.reading.comparison.run_figures import read_figures
from services.page.reading.run_folder import RunFolder
from tests.page.several_runs import make_runs


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    runs = make_runs(tmp_path)
    return Comparison([(RunFolder(path), read_figures(path, name)) for name, path in runs.items()])


def test_the_best_run_comes_first_and_is_marked(comparison: Comparison) -> None:
    table = comparison.table()
    assert [(run["letter"], run["run_id"]) for run in table["runs"]] == [
        ("A", "fast"),
        ("B", "slow"),
        ("C", "broken"),
    ]
    assert [run["best"] for run in table["runs"]] == [
        ["pass_best", "pass_final", "reward"],
        ["reward"],
        [],
    ]
    assert all(figure["definition"] for figure in table["figures"])


def test_changed_keys_are_those_that_differ_and_no_others(comparison: Comparison) -> None:
    changed = {one.key: one.values for one in comparison.changed()}
    assert changed["algorithm.learning_rate"] == ("1e-06", "0.0001", "1e-06")
    assert changed["algorithm.preset"] == ("cispo", "–", "–")
    assert changed["algorithm.loss"] == ("cispo", "clip", "clip")
    assert not {"run_root", "steps", "model"} & changed.keys()


def test_a_key_that_is_younger_than_a_run_had_its_default_there() -> None:
    config = {"name": "a", "task_file": "t", "model": "m", "steps": 1, "batch_groups": 1}
    config |= {"group_size": 2}
    assert changed_keys([config, config | {"seed": 0}]) == []
    (changed,) = changed_keys([config, config | {"seed": 1}])
    assert (changed.key, changed.values) == ("seed", ("0", "1"))


def test_what_is_no_run_file_any_more_is_compared_as_it_is() -> None:
    first = {"model": "a", "old": {"key": [1, 2], "of": [{"file": "a"}]}}
    second = {"model": "a", "old": {"key": [1, 3], "of": [{"file": "b"}]}}
    assert [(one.key, one.values) for one in changed_keys([first, second])] == [
        ("old.key", ("1, 2", "1, 3")),
        ("old.of[0].file", ("a", "b")),
    ]


@pytest.mark.parametrize(
    ("axis", "measured", "trained"),
    [
        ("step", [0.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]),
        ("time", [0.0, 4.0, 8.0], [2.0, 4.0, 6.0, 8.0]),
        ("tokens", [0.0, 1000.0, 2000.0], [500.0, 1000.0, 1500.0, 2000.0]),
    ],
)
def test_curves_lie_over_each_other_by_step_time_or_tokens(
    comparison: Comparison, axis, measured: list[float], trained: list[float]
) -> None:
    charts = {chart.curve.title: chart for chart in comparison.charts(axis, 0.0, 300)}
    rates, rewards = charts["Held-out pass rate, heldout"], charts["Mean reward"]
    assert (rates.dots, rewards.dots) == (True, False)
    assert rates.lines["A"].x == measured
    assert rates.lines["A"].y == [0.1, 0.9, 0.8]
    assert rewards.lines["A"].x == trained
    assert rewards.lines["C"].x == trained[:1]
    assert "Gradient norm" not in charts


def test_a_long_curve_has_so_many_points_and_its_smoothing_sees_every_step(
    comparison: Comparison,
) -> None:
    charts = {chart.curve.title: chart for chart in comparison.charts("step", 0.5, 2)}
    line = charts["Mean reward"].lines["A"]
    smooth = smoothed([0.25, 0.5, 0.75, 1.0], 0.5)
    assert line.y == [0.375, 0.875]
    assert line.smooth == pytest.approx([sum(smooth[:2]) / 2, sum(smooth[2:]) / 2])


def test_smoothing_has_no_bias_towards_nothing_and_leaves_gaps() -> None:
    found = smoothed([4.0, math.nan, 4.0, 1.0], 0.9)
    assert found[0] == pytest.approx(4.0)
    assert math.isnan(found[1])
    assert found[2] == pytest.approx(4.0)
    assert 1.0 < found[3] < 4.0
    assert smoothed([1.0, 2.0], 0.0) == [1.0, 2.0]
