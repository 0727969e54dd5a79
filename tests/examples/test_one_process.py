"""Curves of one process: their record is what the pages show and what the matrix lists."""

import pytest

from benchmarks.learning.matrix import ALGORITHM_BOUNDS, Configuration
from benchmarks.learning.results import Results
from benchmarks.one_process.grading import passes
from benchmarks.one_process.matrix import (
    STUDENT,
    TEACHER,
    configurations,
    stale_name,
    with_teacher,
)
from benchmarks.one_process.page import PAGE, RESULTS, filled
from examples.tiny_code.tasks import all_specs, task_row

BY_NAME = {one.name: one for one in configurations()}


@pytest.mark.parametrize("one", BY_NAME.values(), ids=BY_NAME)
def test_every_configuration_is_a_run_that_the_orchestrator_takes(one: Configuration) -> None:
    run = one.run_config(seed=3, steps=7, run_root="/nowhere")
    bound = one.name.rpartition("/")[2]
    stale = int(bound) if bound.isdigit() else 0
    assert (run.seed, run.steps, run.schedule.max_staleness) == (3, 7, stale)


def test_distillation_has_a_run_at_each_bound_that_algorithms_have() -> None:
    for bound in ALGORITHM_BOUNDS:
        run = BY_NAME[stale_name(STUDENT, bound)].run_config(seed=0, steps=2, run_root="/nowhere")
        assert (run.algorithm.preset, run.schedule.max_staleness) == (STUDENT, bound)


def test_the_page_shows_what_is_recorded_and_the_matrix_lists_it() -> None:
    results = Results.read(RESULTS)
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page, results)
    for had in results.outcomes:
        assert had.overrides == BY_NAME[had.name].overrides, had.name


def test_the_teacher_is_made_before_its_first_student() -> None:
    names = [one.name for one in with_teacher([BY_NAME["distillation/teacher"]])]
    assert names == [TEACHER, "distillation/teacher"]
    alone = [BY_NAME["distillation/early_reward"]]
    assert with_teacher(alone) == alone


def test_a_right_answer_passes_a_buggy_one_does_not_and_nothing_else_is_run() -> None:
    for spec in all_specs()[::97]:
        tests = task_row(spec, "train")["grader"]["tests"]
        assert passes(spec.answer(right=True), tests)
        assert not passes(spec.answer(right=False), tests)
    for said in ("", "return", "return a.b", "return 1/0", "return a%0", "return open('x')"):
        assert not passes(said, [{"args": [1, 2, 3], "expected": 1}])
    assert not passes("return True", [{"args": [1, 2, 3], "expected": 1}])
