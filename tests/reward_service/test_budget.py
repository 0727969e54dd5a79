"""What an answer may take of its own, all its tests together."""

import pytest

from services.reward_service.judging.budget import Budget
from services.reward_service.sandbox.execution import Outcome

IDLE_S = 6.0


def ended(*, wall_s: float, cpu_s: float = 0.01, killed: str | None = None) -> Outcome:
    return Outcome(
        exit_code=0 if killed is None else -9,
        killed=killed,
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_kb=1,
        stdout=b"",
        stderr=b"",
        report=b"",
    )


def used_up_after(budget: Budget, *outcome: Outcome) -> int:
    for number in range(1, 1000):
        budget.charge(*outcome)
        if budget.problem:
            return number
    return 1000


def test_an_answer_that_computes_may_take_all_its_time() -> None:
    budget = Budget(run_s=120, idle_s=IDLE_S)
    assert used_up_after(budget, ended(wall_s=2.1, cpu_s=2.0)) == 58
    assert budget.problem == "ran for 121.8 s in all"
    assert budget.left_s == 0.0


def test_an_answer_that_was_stopped_for_idling_is_not_run_again() -> None:
    budget = Budget(run_s=120, idle_s=IDLE_S)
    assert used_up_after(budget, ended(wall_s=6.0, killed="wall")) == 1
    assert budget.problem == "waited 5.9 s without computing"
    assert budget.left_s == 114.0


def test_idling_below_the_limit_of_each_test_is_idling_too() -> None:
    budget = Budget(run_s=120, idle_s=IDLE_S)
    assert used_up_after(budget, ended(wall_s=2.9)) == 2


@pytest.mark.parametrize("stretch", [1.0, 4.0])
def test_time_without_a_core_on_a_contended_machine_is_no_idling(stretch: float) -> None:
    """Where half of the time is another's, and where four fifths are."""
    budget = Budget(run_s=1e9, idle_s=IDLE_S, stretch=lambda: stretch)
    cpu_s = 1.0
    shared = ended(wall_s=(1 + stretch) * cpu_s, cpu_s=cpu_s)
    assert used_up_after(budget, shared) == 1000


def test_a_process_without_its_share_of_a_crowded_core_did_not_idle() -> None:
    """It looped, and was stopped before it had its processor time: the next test is run."""
    budget = Budget(run_s=120, idle_s=2.4, stretch=lambda: 4.0, crowd=lambda: 20.0)
    starved = ended(wall_s=9.6, cpu_s=0.15, killed="wall")
    budget.charge(starved)
    assert not budget.problem
    sleeper = Budget(run_s=120, idle_s=2.4, stretch=lambda: 4.0, crowd=lambda: 20.0)
    assert used_up_after(sleeper, ended(wall_s=9.6, cpu_s=0.02, killed="wall")) == 1


def test_an_answer_may_take_as_long_in_a_crowd_as_it_would_alone() -> None:
    budget = Budget(run_s=120, idle_s=IDLE_S, crowd=lambda: 10.0)
    assert used_up_after(budget, ended(wall_s=10.0, cpu_s=1.0)) > 100


def test_the_start_of_thousands_of_processes_is_no_idling() -> None:
    budget = Budget(run_s=1e9, idle_s=IDLE_S)
    assert used_up_after(budget, ended(wall_s=0.1, cpu_s=0.001)) == 1000


def test_processor_time_is_that_of_the_answer_alone() -> None:
    budget = Budget(run_s=120, idle_s=IDLE_S, cpu_s=1.0)
    for _ in range(10):
        budget.charge_checker(ended(wall_s=1.0, cpu_s=1.0))
    assert (budget.cpu_s, budget.left_s, budget.problem) == (0.0, 110.0, "")
    assert used_up_after(budget, ended(wall_s=0.25, cpu_s=0.25)) == 4
    assert budget.problem == "used 1.00 s for all tests"


def test_what_tests_compute_while_an_answer_waits_for_them_is_not_its_idling() -> None:
    budget = Budget(run_s=60, idle_s=IDLE_S)
    mine, theirs = ended(wall_s=4.0, cpu_s=0.5), ended(wall_s=4.0, cpu_s=3.4)
    assert used_up_after(budget, mine, theirs) == 15
    assert budget.problem == "ran for 60.0 s in all"
    waited = Budget(run_s=60, idle_s=IDLE_S)
    assert used_up_after(waited, mine, ended(wall_s=6.0, cpu_s=0.1)) == 1


@pytest.mark.parametrize("killed", ["cpu", "wall"])
def test_tests_that_did_not_end_on_what_an_answer_gave_them_are_not_run_again(killed: str) -> None:
    budget = Budget(run_s=120, idle_s=IDLE_S)
    theirs = ended(wall_s=10.0, cpu_s=10.0, killed=killed)
    assert used_up_after(budget, ended(wall_s=10.0, cpu_s=0.1), theirs) == 1


def test_the_time_of_checkers_counts() -> None:
    budget = Budget(run_s=30, idle_s=IDLE_S)
    for _ in range(3):
        assert not budget.problem
        budget.charge_checker(ended(wall_s=10.0, cpu_s=9.0))
    assert budget.problem == "ran for 30.0 s in all"
