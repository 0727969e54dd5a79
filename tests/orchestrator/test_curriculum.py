"""Tasks that are solved sometimes come more often, deterministically, also after a resume."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.orchestrator.tasks.curriculum import Curriculum, PassedOver, PassRates
from services.orchestrator.tasks.prompts import Mixture
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.run.task import CurriculumConfig
from tests.orchestrator.fakes import run_to_end, world

pytestmark = pytest.mark.usefixtures("no_drawing")

TASKS = [f"t{number}" for number in range(30)]


def curriculum(
    rates: PassRates,
    folder: Path,
    *,
    seed: int = 0,
    floor: float = 0.2,
    counts: Sequence[int] = (len(TASKS),),
    weights: Sequence[float] = (1.0,),
) -> Curriculum:
    order = Mixture(seed=seed, counts=counts, weights=weights, task_ids=TASKS)
    config = CurriculumConfig(low=0.2, high=0.8, floor=floor)
    passed = PassedOver(folder / f"passed-{seed}.jsonl")
    return Curriculum(config, order=order, rates=rates, passed=passed, seed=seed)


def taken(order: Curriculum, count: int, position: int = 0) -> list[tuple[int, str]]:
    places = []
    for _ in range(count):
        place = order.next(position)
        places.append((place.position, place.task_id))
        position = place.position + 1
    return places


def test_tasks_in_the_band_or_unknown_are_always_taken_and_others_with_the_floors_chance(
    tmp_path: Path,
) -> None:
    rates = PassRates(tmp_path / "rates.jsonl")
    for task_id in TASKS[:10]:
        rates.note(task_id, [1.0, 1.0])  # always solved
    for task_id in TASKS[10:20]:
        rates.note(task_id, [1.0, 0.0, 0.5, 0.0])  # a quarter passes
    counts = Counter(task_id for _, task_id in taken(curriculum(rates, tmp_path), 4400))
    solved, sometimes, unknown = (
        sum(counts[task_id] for task_id in TASKS[start : start + 10]) for start in (0, 10, 20)
    )
    assert abs(sometimes - unknown) <= 10, "each comes once in every pass"
    assert 0.15 < solved / sometimes < 0.25


def test_the_choice_is_the_same_for_a_seed_and_goes_on_where_it_was(tmp_path: Path) -> None:
    rates = PassRates(tmp_path / "rates.jsonl")
    for task_id in TASKS[:25]:
        rates.note(task_id, [0.0])
    whole = taken(curriculum(rates, tmp_path), 60)
    again = PassRates(tmp_path / "rates.jsonl")
    with (tmp_path / "rates.jsonl").open("a") as file:
        file.write('["t29"')  # cut short by a kill
    resumed = curriculum(PassRates(tmp_path / "rates.jsonl"), tmp_path)
    assert again.of("t3") == 0.0
    assert taken(resumed, 30, position=whole[29][0] + 1) == whole[30:]
    assert taken(curriculum(rates, tmp_path, seed=1), 60) != whole


def test_prompts_that_were_never_admitted_are_chosen_again(tmp_path: Path) -> None:
    rates = PassRates(tmp_path / "rates.jsonl")
    for task_id in TASKS[:25]:
        rates.note(task_id, [0.0])
    order = curriculum(rates, tmp_path)
    whole = taken(order, 40)
    assert taken(order, 20, position=20) == whole[20:], "in the same process"
    again = curriculum(rates, tmp_path)
    assert taken(again, 10, position=30) == whole[30:]
    assert taken(curriculum(rates, tmp_path), 40) == whole


def test_every_source_keeps_its_share_and_its_order_whatever_is_passed_over(
    tmp_path: Path,
) -> None:
    rates = PassRates(tmp_path / "rates.jsonl")
    for task_id in TASKS[1:20]:
        rates.note(task_id, [0.0])  # one task of the first source is in the band
    order = curriculum(rates, tmp_path, floor=0.01, counts=(20, 10), weights=(10.0, 1.0))
    met = [task_id for _, task_id in taken(order, 220)]
    second = [task_id for task_id in met if task_id in TASKS[20:]]
    assert len(second) == 20
    assert sorted(second[:10]) == sorted(second[10:]) == sorted(TASKS[20:]), "whole epochs"
    assert met.count(TASKS[0]) > 150


def test_a_curriculum_always_finds_a_task(tmp_path: Path) -> None:
    rates = PassRates(tmp_path / "rates.jsonl")
    for task_id in TASKS:
        rates.note(task_id, [0.0])
    assert len(taken(curriculum(rates, tmp_path, floor=1e-9), 2)) == 2


async def test_a_run_with_a_curriculum_remembers_rates_and_resumes(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.router.answers = lambda asked, index, version: (
            index % 2 == 0 or asked.body["messages"][0]["content"][-1] in "13579"
        )
        config = cluster.run_config(steps=8, curriculum={"floor": 0.01})
        first = await run_to_end(cluster, config)
        assert first.state is RunState.FINISHED, first.detail
        later = cluster.run_config(steps=14, curriculum={"floor": 0.01})
        status = await run_to_end(cluster, later, resume=first.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, 14), status.detail
        text = (Path(status.run_dir) / "pass_rates.jsonl").read_text()
        met = [json.loads(line) for line in text.splitlines()]
        assert len({task_id for task_id, _ in met[:24]}) == 24, "each task once at first"
        solved = [task_id for task_id, rate in met[24:] if rate == 1.0]
        assert len(met) - 24 > 10 * len(solved)


def test_a_band_upside_down_is_refused() -> None:
    run = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}
    with pytest.raises(InvalidInput, match="low must be at most high"):
        RunConfig.from_data(
            run | {"task_file": "t", "curriculum": {"low": 0.9, "high": 0.1}}, source="run"
        )
