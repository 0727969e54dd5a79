from typing import Any

from services.page.reading.details.alerts import alerts

GOOD = {
    "error": "",
    "flow": {"imbalance": 0},
    "config": {"schedule": {"max_staleness": 1}},
    "status": None,
}
STEPS = {
    "groups_trained": [8.0] * 10,
    "groups_filtered": [0.0] * 10,
    "staleness_max": [1.0] * 10,
    "trainer.entropy": [0.5] * 10,
    "trainer.skipped_updates": [0.0] * 10,
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
        "groups_trained": [0.0] * 10,
        "groups_filtered": [8.0] * 10,
        "staleness_max": [1.0] * 9 + [3.0],
        "trainer.entropy": [0.5] * 9 + [0.01],
        "trainer.skipped_updates": [1.0] * 2 + [0.0] * 7 + [2.0],
    }
    assert titles(GOOD, bad) == [
        "4 of the newest updates were skipped",
        "A group was trained at staleness 3, above the bound of 1",
        "100% of the newest groups teach nothing",
        "The policy's entropy is 0.010 nats",
    ]


def test_what_the_orchestrator_found_is_told_with_its_advice_and_only_once() -> None:
    finding = {"kind": "equal_rewards", "text": "9 of 10 groups", "advice": "Easier tasks."}
    steps = STEPS | {"groups_trained": [0.0] * 10, "groups_filtered": [8.0] * 10}
    for overview in ({"status": {"findings": [finding]}}, {"summary": {"findings": [finding]}}):
        (found,) = alerts(GOOD | overview, steps, [])
        assert (found["title"], found["why"]) == ("9 of 10 groups", "Easier tasks.")
    for damaged in ("x", ["x"], [{"kind": []}], [{"kind": [], "text": 1, "advice": 2}]):
        alerts(GOOD | {"summary": {"findings": damaged}}, steps, [])


def test_a_run_that_cannot_go_on_says_why() -> None:
    status = {"state": "disk_full", "detail": "waits for 2 GiB in /runs"}
    (found,) = alerts(GOOD | {"status": status}, STEPS, [])
    assert (found["level"], found["title"]) == ("bad", "The run is disk full")
    assert found["why"] == "waits for 2 GiB in /runs"
    assert titles(GOOD | {"status": {"state": "training", "detail": ""}}, STEPS) == []
