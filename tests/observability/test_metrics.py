"""What Millrace's own metrics do beyond Ray's."""

import pytest

from services.observability import metrics
from services.observability.metrics import Counter, Gauge, refresh_all


def test_a_counter_may_be_told_of_nothing_but_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = Counter("millrace_test_counter", "Of this test", ("run",))
    recorded: list[float] = []
    monkeypatch.setattr(counter, "_record", lambda value, tags: recorded.append(value))
    for value in (2, 0, 0.5):
        counter.inc(value, {"run": "a"})
    counter.inc()
    assert recorded == [2, 0.5, 1.0]
    with pytest.raises(ValueError, match="-1"):
        counter.inc(-1)


def test_a_gauge_that_follows_something_shows_it_as_it_is_at_each_refresh() -> None:
    gauge = Gauge("millrace_test_age", "Of this test")
    age = [1.0]
    gauge.follow(lambda: age[0])
    age[0] = 2.0
    gauge.refresh()
    assert gauge._last == {(): 2.0}


def test_a_gauge_that_keeps_only_some_tags_forgets_every_other_series() -> None:
    gauge = Gauge("millrace_test_kept", "Of this test", ("run", "name"))
    for run in ("a", "b"):
        for name in ("loss", "entropy"):
            gauge.set(1.0, {"run": run, "name": name})
    gauge.keep_only({"run": "b"})
    assert {dict(key)["run"] for key in gauge._last} == {"b"}
    assert len(gauge._last) == 2


def test_a_gauge_that_cannot_be_read_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_GAUGES", [])
    once, always = iter([1.0]), iter([1.0, 2.0])
    broken = Gauge("millrace_test_broken", "Of this test")
    broken.follow(lambda: next(once))
    other = Gauge("millrace_test_other", "Of this test")
    other.follow(lambda: next(always))
    refresh_all()
    assert (broken._last, other._last) == ({(): 1.0}, {(): 2.0})
