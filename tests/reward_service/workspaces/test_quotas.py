"""Open workspaces are counted by key and replica, and starts are spaced."""

import pytest

from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import QuotaFull
from services.reward_service.workspaces.quotas import Quotas


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def quotas(clock: Clock, **settings: object) -> Quotas:
    given = {"starts_at_once": 100, "starts_per_s": 1.0, **settings}
    return Quotas(WorkspacesConfig.model_validate(given), clock)


def test_each_key_has_its_own_quota_and_the_replica_one_for_all() -> None:
    held = quotas(Clock(), per_key=2, max_open=3)
    held.take("a")
    held.take("a")
    with pytest.raises(QuotaFull, match="per_key"):
        held.take("a")
    held.take("b")
    with pytest.raises(QuotaFull, match="max_open"):
        held.take("c")
    held.give_back("a")
    held.take("c")
    assert held.open == 3


def test_starts_beyond_the_burst_wait_and_then_are_refused_with_a_time() -> None:
    clock = Clock()
    held = quotas(clock, starts_at_once=2, starts_per_s=2.0, start_wait_s=1.0)
    assert [held.take("a") for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
    with pytest.raises(QuotaFull, match="2 a second") as full:
        held.take("a")
    assert full.value.retry_after_s == 1.5
    clock.now += 1.0
    assert held.take("a") == 0.5


def test_a_refused_start_costs_nothing() -> None:
    clock = Clock()
    held = quotas(clock, starts_at_once=1, starts_per_s=1.0, start_wait_s=0.0)
    held.take("a")
    for _ in range(5):
        with pytest.raises(QuotaFull):
            held.take("a")
    clock.now += 1.0
    assert held.take("a") == 0.0
    assert held.open == 2
