"""The staleness bound is on the bus whatever becomes of the bus."""

import asyncio
from collections.abc import Callable

import pytest

from services.changes import Changes
from services.orchestrator import fleet as fleet_module
from services.orchestrator.fleet import Fleet
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import MemberTable
from tests.orchestrator.fakes import FakeBus


class RestartingBus(FakeBus):
    """A bus that can be away, and that forgets the bound when it restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = {"watch": 0, "bound_lag": 0}

    def restart(self) -> None:
        self.max_lag = None
        self.revision = 0
        self._notify()

    def _refuse(self, method: str) -> None:
        if self.refusals[method]:
            self.refusals[method] -= 1
            raise NotReady("the bus restarts")

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        self._refuse("watch")
        return await super().watch(revision, 0.05)

    async def bound_lag(self, max_lag: int | None) -> None:
        self._refuse("bound_lag")
        await super().bound_lag(max_lag)


async def until(condition: Callable[[], bool], changes: Changes) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await changes.after(changes.count, 0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_RETRY_S", 0.001)


async def test_the_bound_is_given_again_until_a_restarted_bus_has_heard_it() -> None:
    bus, changes = RestartingBus(), Changes()
    fleet = Fleet(bus, changes)
    await fleet.bound_lag(2, 1.0)
    watching = asyncio.create_task(fleet.watch())
    await until(lambda: changes.count > 0, changes)
    bus.refusals = {"watch": 1, "bound_lag": 5}
    bus.restart()
    await until(lambda: not any(bus.refusals.values()) and bus.max_lag == 2, changes)
    watching.cancel()
    assert set(bus.lags) == {2}


async def test_the_bound_is_given_again_when_the_revision_falls() -> None:
    """The restart fell between two polls, so that no call of ours ever failed."""
    bus, changes = RestartingBus(), Changes()
    bus.revision = 50
    fleet = Fleet(bus, changes)
    await fleet.bound_lag(1, 1.0)
    watching = asyncio.create_task(fleet.watch())
    await until(lambda: changes.count > 0, changes)
    bus.restart()
    await until(lambda: bus.max_lag == 1, changes)
    watching.cancel()
    assert bus.lags == [1, 1]


async def test_a_bound_that_has_not_changed_is_given_once() -> None:
    bus, changes = RestartingBus(), Changes()
    fleet = Fleet(bus, changes)
    await fleet.bound_lag(1, 1.0)
    watching = asyncio.create_task(fleet.watch())
    for version in (1, 2, 3):
        bus.publish_version(version)
        await until(lambda v=version: fleet.live_version == v, changes)
    watching.cancel()
    assert bus.lags == [1]
