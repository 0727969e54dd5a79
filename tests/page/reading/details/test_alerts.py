from typing import Any

from services.page.reading.details.alerts import alerts

GOOD = {
    "error": "",
    "flow": {"imbalance": 0},
    "config": {"schedule": {"max_staleness": 1}},
    "status": None,
}
STEPS = {
    "groups_trained": [8.0] * 20,
    "groups_filtered": [0.0] * 20,
    "staleness_max": [1.0] * 20,
    "trainer.entropy": [0.5] * 20,
    "trainer.skipped_updates": [0.0] * 20,
}


def titles(overview: dict[str, Any], columns: dict[str, Any]) -> list[str]:
    return [one["title"] for one in alerts(overview, columns, [])]


def test_a_good_run_has_none_and_neither_has_one_that_has_only_begun() -> None:
    assert titles(GOOD, STEPS) == []
    assert titles(GOOD, {}) == []


def test_what_is_broken_comes_first() -> None:
    known = {"event": "rollout_failed", "level": "warning", "count": 3, "newest": ""}
    warning = known | {"line": {"error": "HTTP 500"}}
    broken = GOOD | {"error": "Traceback", "flow": {"imbalance": -7}}
    found = alerts(broken, STEPS, [warning])
    assert [one["level"] for one in found] == ["bad", "bad", "warning"]
    assert found[1]["why"].startswith("It is off by -7.")
    assert (found[2]["title"], found[2]["why"]) == ("rollout failed", "HTTP 500")
    (error,) = alerts(GOOD, STEPS, [warning | {"level": "error"}])
    assert error["level"] == "bad"


def test_figures_of_the_newest_steps_that_are_out_of_bounds_are_told() -> None:
    bad = STEPS | {
        "groups_trained": [8.0] * 10 + [0.0] * 10,
        "groups_filtered": [0.0] * 10 + [8.0] * 10,
        "staleness_max": [1.0] * 19 + [3.0],
        "trainer.entropy": [0.5] * 19 + [0.01],
        "trainer.skipped_updates": [1.0] * 12 + [0.0] * 7 + [2.0],
    }
    assert titles(GOOD, bad) == [
        "4 of the newest updates were skipped",
        "A group was trained at staleness 3, above the bound of 1",
        "100% of the newest groups teach nothing",
        "The policy's entropy is 0.010 nats",
    ]
