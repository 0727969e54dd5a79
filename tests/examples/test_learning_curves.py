from itertools import groupby
from typing import get_args

import pytest

from benchmarks.learning.matrix import (
    ALGORITHM_BOUNDS,
    TWICE,
    WITH_PRESET,
    Configuration,
    configurations,
    stale_algorithm_name,
    staleness_configuration,
)
from benchmarks.learning.page import PAGE, filled
from benchmarks.learning.results import RESULTS, Outcome, Results
from services.protocol.run.algorithm_preset import PresetName

BY_NAME = {one.name: one for one in configurations()}


@pytest.mark.parametrize("one", BY_NAME.values(), ids=BY_NAME)
def test_every_configuration_is_a_run_that_the_orchestrator_takes(one: Configuration) -> None:
    run = one.run_config(seed=3, steps=7, run_root="/nowhere")
    assert (run.seed, run.steps, run.run_root) == (3, 7, "/nowhere")
    bound = one.name.rpartition("/")[2]
    assert not bound.isdigit() or run.schedule.max_staleness == int(bound)


@pytest.mark.parametrize(("place", "preset"), TWICE.items())
def test_a_preset_in_the_place_of_a_staleness_bound_is_the_same_run(
    place: str, preset: str
) -> None:
    _, correction, bound = place.split("/")
    one = staleness_configuration(correction, int(bound))
    runs = [
        it.run_config(seed=0, steps=2, run_root="/nowhere").model_dump()
        for it in (one, BY_NAME[preset])
    ]
    for run in runs:
        del run["schedule"]["preset"]
    assert runs[0] == runs[1]


def test_the_tables_of_the_page_are_those_of_the_recorded_runs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page, Results.read(RESULTS))


@pytest.mark.parametrize("algorithm", WITH_PRESET)
def test_every_algorithm_has_a_run_at_each_bound_of_its_table(algorithm: str) -> None:
    for bound in ALGORITHM_BOUNDS:
        one = BY_NAME[stale_algorithm_name(algorithm, bound)]
        schedule = one.run_config(seed=0, steps=2, run_root="/nowhere").schedule
        assert schedule.max_staleness == bound


def test_every_preset_has_runs_at_each_bound_but_those_that_need_a_teacher() -> None:
    needs_a_teacher = {"on_policy_distillation", "self_distillation"}
    assert set(get_args(PresetName)) - set(WITH_PRESET) == needs_a_teacher


def test_what_is_recorded_is_what_the_matrix_lists() -> None:
    for had in Results.read(RESULTS).outcomes:
        assert had.overrides == BY_NAME[had.name].overrides, had.name


def test_every_recorded_run_of_a_seed_began_with_the_same_model() -> None:
    def begun(one: Outcome) -> tuple[str, int]:
        return BY_NAME[one.name].example, one.seed

    outcomes = sorted(Results.read(RESULTS).outcomes, key=begun)
    assert outcomes
    for (example, seed), of_seed in groupby(outcomes, key=begun):
        runs = list(of_seed)
        assert len({one.before for one in runs}) == 1, seed
        if example == "tiny_code":  # the shop's runs differ in their rewards
            assert len({one.reward[0] for one in runs if _takes_prompts_in_order(one)}) == 1, seed


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for the table 'presets'"):
        filled("# A page", Results.read(RESULTS))


def _takes_prompts_in_order(one: Outcome) -> bool:
    """The first batch is the first prompts, whatever else takes longer or shorter."""
    run = BY_NAME[one.name].run_config(seed=one.seed, steps=one.steps, run_root="/nowhere")
    return run.schedule.unfinished == "wait" and not run.schedule.dynamic_sampling
