"""The supervisor of the bus: it takes down its own bus alone, and waits out one that ends."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

from services.protocol.errors import NotReady
from services.weight_bus import app
from services.weight_bus.config import WeightBusConfig


def bus(name: str, *, ends: bool = False) -> Any:
    """An actor handle as Ray finds it by the bus's name."""

    async def watch(seen: int, wait_s: float) -> None:
        if ends:
            raise ActorDiedError

    return SimpleNamespace(name=name, watch=SimpleNamespace(remote=watch))


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what a supervisor has ended."""
    names: list[str] = []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: names.append(actor.name))
    monkeypatch.setattr(app, "end_relays", lambda: names.append("relays"))
    monkeypatch.setattr(app, "_LOOK_S", 0.0)
    return names


def supervisor(monkeypatch: pytest.MonkeyPatch, *found: Any) -> app.WeightBusSupervisor:
    """One that finds these by the bus's name, the last again and again."""
    left = list(found)
    monkeypatch.setattr(
        app.WeightBusSupervisor,
        "_get_or_create",
        lambda _: left.pop(0) if len(left) > 1 else left[0],
    )
    return app.WeightBusSupervisor(WeightBusConfig())


async def test_a_bus_that_is_about_to_end_is_waited_out(
    monkeypatch: pytest.MonkeyPatch, killed: list[str]
) -> None:
    ending, own = bus("ending", ends=True), bus("own")
    one = supervisor(monkeypatch, ending, ending, ending, own)
    await one.check_health()
    assert killed == []
    one.__del__()
    one.__del__()  # Serve calls it before Python does
    assert killed == ["own", "relays"]


async def test_a_bus_that_dies_later_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, killed: list[str]
) -> None:
    one = supervisor(monkeypatch, bus("own"), bus("own"), bus("dead", ends=True), bus("new"))
    await one.check_health()
    with pytest.raises(NotReady, match="ActorDiedError"):
        await one.check_health()
    await one.check_health()


async def test_a_supervisor_that_fails_leaves_the_next_ones_bus(
    monkeypatch: pytest.MonkeyPatch, killed: list[str]
) -> None:
    monkeypatch.setattr(app, "_BUSES", 2)
    failed = supervisor(monkeypatch, bus("ending", ends=True))
    with pytest.raises(NotReady):
        await failed.check_health()
    following = supervisor(monkeypatch, bus("own"))
    await following.check_health()
    failed.__del__()
    assert killed == ["ending", "relays"]
    following.__del__()
