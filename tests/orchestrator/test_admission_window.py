"""Groups in flight follow the engines and the age of batches, within the schedule's bounds."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.orchestrator.core.events import BatchTaken
from services.orchestrator.loop.admission import AdmissionWindow
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunState
from tests.orchestrator.fakes import run_to_end, world
from tests.orchestrator.random_schedule import draw, play

IDLE = RouterLoad(
    replicas=2, full=0, in_flight=0, waiting=0, queued=0.0, kv_usage=None, max_choices=8
)
loads = st.builds(
    RouterLoad,
    replicas=st.integers(0, 4),
    full=st.integers(0, 4),
    in_flight=st.integers(0, 500),
    waiting=st.integers(0, 9),
    queued=st.floats(0, 99),
    kv_usage=st.none() | st.floats(0, 1),
    max_choices=st.just(8),
)
looks = st.tuples(st.none() | loads, st.integers(0, 99), st.booleans(), st.booleans())


@given(batch=st.integers(1, 20), more=st.integers(0, 60), seen=st.lists(looks, max_size=60))
@settings(max_examples=60)
def test_the_window_is_never_above_the_schedules_bound_nor_below_one_batch(batch, more, seen):
    window = AdmissionWindow(batch_groups=batch, bound=batch + more)
    assert window.size == batch + more
    for load, open_groups, starving, at_bound in seen:
        window.on(BatchTaken(group_ids=(), at_bound=at_bound, ready=open_groups))
        window.look(load, open_groups=open_groups, starving=starving)
        assert batch <= window.size <= batch + more


@pytest.mark.parametrize("fits", [10, 23, 40])
def test_it_converges_to_what_the_engines_hold(fits: int) -> None:
    window, sizes = AdmissionWindow(batch_groups=8, bound=64), []
    for _ in range(200):
        load = IDLE.model_copy(update={"waiting": max(0, window.size - fits)})
        window.look(load, open_groups=window.size, starving=True)
        sizes.append(window.size)
    assert all(int(0.8 * fits) <= size <= fits + 1 for size in sizes[20:])


@pytest.mark.parametrize(
    "full", [{"waiting": 1}, {"queued": 9.0}, {"kv_usage": 0.95}], ids=lambda full: next(iter(full))
)
def test_each_kind_of_pressure_lowers_it_once_until_the_cut_has_taken_effect(full) -> None:
    window = AdmissionWindow(batch_groups=4, bound=20)
    load = IDLE.model_copy(update=full)
    window.look(load, open_groups=20, starving=True)
    assert window.size == 16
    window.look(load, open_groups=17, starving=True)
    assert window.size == 16, "there are more open than it allows: wait"
    window.look(load, open_groups=16, starving=True)
    assert window.size == 12


def test_groups_that_grow_old_in_waiting_lower_it_and_a_starving_trainer_raises_it() -> None:
    window = AdmissionWindow(batch_groups=8, bound=24)
    window.on(BatchTaken(group_ids=(), at_bound=True, ready=0))
    window.look(IDLE, open_groups=10, starving=False)
    assert window.size == 24, "none waited"
    window.on(BatchTaken(group_ids=(), at_bound=True, ready=3))
    window.on(BatchTaken(group_ids=(), at_bound=False, ready=0))
    window.look(IDLE, open_groups=10, starving=True)
    assert window.size == 19
    window.look(IDLE, open_groups=10, starving=False)
    assert window.size == 19, "nobody needs more"
    window.look(IDLE, open_groups=10, starving=True)
    assert window.size == 20
    window.look(IDLE.model_copy(update={"full": 2}), open_groups=20, starving=True)
    assert window.size == 20, "there is no room"


async def test_a_run_admits_no_more_than_its_window_and_shows_it(
    tmp_path: Path, no_drawing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.orchestrator.loop.admission._LOOK_S", 0.005)
    async with world(tmp_path) as cluster:
        cluster.router.load = IDLE.model_copy(update={"waiting": 5})
        cluster.router.delay = lambda asked, index: 0.02
        config = cluster.run_config(
            steps=12, schedule={"preset": "async", "max_staleness": 4, "adaptive": True}
        )
        status = await run_to_end(cluster, config)
        assert (status.state, status.step) == (RunState.FINISHED, 12), status.detail
        assert status.admission_window == config.batch_groups


@pytest.mark.parametrize("seed", range(3))
def test_adaptive_schedules_lose_nothing_and_end_whatever_breaks(
    tmp_path: Path, no_drawing: None, seed: int
) -> None:
    plan = draw(seed)
    plan = replace(plan, schedule=plan.schedule | {"adaptive": True})
    life, status = play(plan, tmp_path)
    assert life.witness.problems == []
    assert status.state is RunState.FINISHED
