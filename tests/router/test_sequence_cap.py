"""What one replica may have in flight, learned from its engine."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.config import RouterConfig
from services.router.placement.health import Pressure, SequenceCap


class _Engine:
    """Runs `slots` sequences, each with its share of the KV cache."""

    def __init__(self, slots, kv_each=0.0):
        self.slots, self.kv_each = slots, kv_each

    def pressure(self, in_flight):
        running = min(in_flight, self.slots)
        return Pressure(
            running=running, waiting=in_flight - running, kv_usage=min(1.0, running * self.kv_each)
        )


def _settle(cap, engine, demand, looks):
    for _ in range(looks):
        in_flight = min(demand, cap.limit)
        cap.observe(engine.pressure(in_flight), in_flight)
    return cap.limit


def test_the_cap_comes_down_to_what_the_engine_runs_and_a_little_more():
    cap = SequenceCap(RouterConfig(max_sequences=1000))
    assert 64 < _settle(cap, _Engine(64), demand=2000, looks=10) <= 64 + 64 / 4


def test_the_cap_keeps_the_kv_cache_from_running_over():
    engine = _Engine(1000, kv_each=0.01)
    cap = SequenceCap(RouterConfig(max_sequences=1000))
    limit = _settle(cap, engine, demand=2000, looks=200)
    assert 0.80 <= engine.pressure(limit).kv_usage <= 0.97


def test_the_cap_rises_again_when_the_engine_has_room():
    cap = SequenceCap(RouterConfig(max_sequences=500))
    _settle(cap, _Engine(32), demand=2000, looks=5)
    assert cap.limit < 50
    assert _settle(cap, _Engine(400), demand=2000, looks=100) >= 400


def test_a_large_group_that_has_just_come_is_no_pressure():
    cap = SequenceCap(RouterConfig(max_sequences=500))
    cap.observe(Pressure(running=8, waiting=256, kv_usage=0.1), 264)
    cap.observe(Pressure(running=264, waiting=0, kv_usage=0.1), 264)
    assert cap.limit == 500


def test_one_overload_is_cut_once():
    """Until the sequences above the new cap have ended, their queue is no news."""
    cap = SequenceCap(RouterConfig(max_sequences=1000))
    for _ in range(2):
        cap.observe(Pressure(running=100, waiting=500, kv_usage=0.5), 600)
    limit = cap.limit
    for running in (90, 50, 10):
        cap.observe(Pressure(running=running, waiting=500, kv_usage=0.5), 500 + running)
    assert cap.limit == limit


pressures = st.builds(
    Pressure,
    running=st.integers(0, 4000),
    waiting=st.integers(0, 4000),
    kv_usage=st.floats(0, 1),
)


@given(looks=st.lists(st.tuples(pressures, st.integers(0, 4000)), max_size=50))
@settings(max_examples=60)
def test_the_cap_stays_within_its_bounds_whatever_an_engine_says(looks):
    config = RouterConfig(min_sequences=4, max_sequences=300)
    cap = SequenceCap(config)
    for pressure, in_flight in looks:
        cap.observe(pressure, in_flight)
        assert config.min_sequences <= cap.limit <= config.max_sequences
