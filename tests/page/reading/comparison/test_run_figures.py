"""The figures of a run, from its files."""

import shutil
from pathlib import Path

import pytest

from services.orchestrator.run_folder.run_directory import RunDirectory
from services.page.reading.comparison.figure_text import duration, number, shown
from services.page.reading.comparison.run_figures import (
    RUN_FIGURES,
    FiguresReader,
    RunFigures,
    read_figures,
)
from tests.page.several_runs import STEPS, TOKENS_A_STEP, evaluation, make, make_runs


def figures(path: Path) -> RunFigures:
    return read_figures(path, path.name)


def test_final_and_best_pass_rate_are_two_figures(tmp_path: Path) -> None:
    fast = figures(make_runs(tmp_path)["fast"])
    assert (fast.pass_before, fast.pass_best, fast.pass_final) == (0.1, 0.9, 0.8)
    assert fast.best_step == 2
    assert (fast.state, fast.model, fast.algorithm) == ("finished", "tiny", "cispo")
    assert (fast.steps, fast.elapsed_s, fast.tokens_sampled) == (4, 9.0, 4 * TOKENS_A_STEP)
    assert fast.texts["steps"] == "4 of 4"


def test_a_run_that_broke_before_an_evaluation_has_no_final_rate(tmp_path: Path) -> None:
    broken = figures(make_runs(tmp_path)["broken"])
    assert (broken.state, broken.pass_final, broken.pass_best) == ("failed", None, 0.1)
    assert (broken.texts["pass_final"], broken.texts["pass_best"]) == ("–", "10.0%")
    assert broken.texts["steps"] == "1 of 4"


def test_the_rate_is_of_the_set_that_the_orchestrator_shows(tmp_path: Path) -> None:
    path = make(tmp_path, "run", {})
    for name, rate in (("hard", 0.2), ("heldout", 0.7)):
        RunDirectory(path).append_evaluation(evaluation(name, STEPS, rate))
    assert (figures(path).heldout_set, figures(path).texts["pass_final"]) == ("heldout", "70.0%")


def test_rates_of_different_sets_name_them_and_none_is_the_best(tmp_path: Path) -> None:
    easy, hard = make(tmp_path, "easy", {STEPS: 0.9}), make(tmp_path, "hard", {})
    RunDirectory(hard).append_evaluation(evaluation("hard tasks", STEPS, 0.2))
    rate = next(one for one in RUN_FIGURES if one.name == "pass_final")
    assert rate.text_of(figures(hard)) == "20.0% of hard tasks"
    assert rate.best_of([figures(easy), figures(hard)]) == set()


def test_a_summary_from_before_a_resumption_does_not_turn_the_clock_back(tmp_path: Path) -> None:
    path = make(tmp_path, "run", {})
    RunDirectory(path).metrics.write({"step": 5, "elapsed_s": 60.0})
    assert (figures(path).steps, figures(path).elapsed_s) == (5, 60.0)


HUGE = "9" * 400
DAMAGED = ['{"step": NaN}', f'{{"step": {HUGE}, "reward": 1}}', '{"pass_at": {"1": 1e400}}', "{"]


def test_damaged_files_cost_their_own_figures_only(tmp_path: Path) -> None:
    path = make_runs(tmp_path)["fast"]
    for name in ("metrics", "evaluations"):
        with (path / f"{name}.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in DAMAGED)
    (path / "summary.json").write_text(f'{{"wall_s": {HUGE}}}')
    found = figures(path)
    assert (found.steps, found.elapsed_s, found.pass_final) == (4, 8.0, 0.8)
    (path / "config.yaml").write_text('{steps: .nan, name: "\\ud800"}')
    (path / "ledger.sqlite").write_bytes(b"this is no database" * 100)
    found = figures(path)
    assert (found.model, found.texts["steps"], found.tokens_sampled) == (None, "4", 2000)


def test_the_newest_step_is_found_at_the_end_of_a_long_file(tmp_path: Path) -> None:
    path = make(tmp_path, "run", {})
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(f'{{"step": {step}, "pad": "{"x" * 999}"}}\n' for step in range(5, 999))
        file.write('{"step": 999')
    assert figures(path).steps == 998


def test_a_run_is_read_again_only_after_it_has_changed(tmp_path: Path) -> None:
    path, reader = make(tmp_path, "run", {}), FiguresReader()
    first = reader.of(path, "run")
    assert reader.of(path, "run") is first
    RunDirectory(path).metrics.write({"step": 5, "reward": 0.5})
    assert reader.of(path, "run").steps == 5
    shutil.rmtree(path)
    assert reader.of(path, "run").steps == 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (duration(0.0), "0 s"),
        (duration(0.25), "250 ms"),
        (duration(59.94), "59.9 s"),
        (duration(59.96), "1 min 0 s"),
        (duration(119.7), "2 min 0 s"),
        (duration(61.4), "1 min 1 s"),
        (duration(3599.9), "1 h 0 min"),
        (duration(86399.0), "1.0 d"),
        (duration(200_000.0), "2.3 d"),
        (number(0.00004), "4.0e-05"),
        (number(0.5), "0.5"),
        (number(123.456), "123.5"),
        (number(12345.6), "12,346"),
        (number(0.0), "0"),
        (shown(1e-5), "1e-05"),
        (shown(True), "true"),
        (shown(None), "–"),
    ],
)
def test_figures_are_written_for_people(said: str, expected: str) -> None:
    assert said == expected
