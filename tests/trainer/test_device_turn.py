"""Turns of the trainer on shared devices, against a scripted bus and scripted ranks."""

import asyncio
from typing import Any

import pytest

from services.protocol.errors import InvalidInput, NoResources, NotReady
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.trainer.config import TrainerConfig
from services.trainer.lead import device_turn
from services.trainer.lead.device_turn import DeviceTurn


class Lender:
    """The bus: replicas in `busy` free their devices one a call."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.busy: list[str] = []
        self.asked = asyncio.Semaphore(0)
        self.away = 0
        self.members: tuple[Member, ...] = ()

    async def lend_devices(self, borrower: str, wait_s: float) -> tuple[str, ...]:
        if self.away:
            self.away -= 1
            raise NotReady("the bus is away")
        self.asked.release()
        self.calls.append(f"lend {borrower}")
        left = tuple(self.busy)
        self.busy = self.busy[1:]
        return left

    async def return_devices(self, borrower: str) -> None:
        if self.away:
            self.away -= 1
            raise NotReady("the bus is away")
        self.calls.append(f"return {borrower}")

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        if revision == 1:
            await asyncio.sleep(wait_s)
        return MemberTable(
            bus_id="b",
            revision=1,
            newest_version=None,
            lease_s=10.0,
            members=self.members,
            trainer_ready=False,
            pushes=0,
        )


class Ranks:
    def __init__(self, name: str, calls: list[str], *, loaded: bool = True) -> None:
        self.name, self.calls, self.loaded = name, calls, loaded
        self.lost = False

    def kill(self, reason: str) -> None:
        self.lost = True
        self.calls.append(f"kill {self.name}")

    async def call(self, method: str, *args: Any) -> list[Any]:
        if self.lost:
            raise NotReady("the trainer's ranks are restarting")
        if not self.loaded:
            raise RuntimeError("a rank was given work before join")
        self.calls.append(f"{method} {self.name}")
        return [1, 1]


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.calls: list[str] = []
        self.bus, self.ranks = Lender(self.calls), Ranks("a", self.calls)
        given = {"placement": "shared", "start_timeout_s": 0.5, "world_size": 2} | settings
        self.turn = DeviceTurn(TrainerConfig(model="m", **given), self.bus)  # type: ignore[arg-type]

    async def keep(self) -> None:
        """Begin a turn that goes on."""
        async with self.turn.on_devices(self.ranks):
            self.turn.kept = True

    async def work(self, ranks: Ranks | None = None) -> None:
        async with self.turn.on_devices(ranks or self.ranks):
            self.calls.append("work")


WHOLE = ["lend a", "unpark a", "work", "park a", "return a"]


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_turn, "_RETRY_S", 0.001)


async def test_an_operation_is_a_turn_and_a_kept_turn_goes_on_for_the_next() -> None:
    scene = Scene()
    await scene.work()
    assert scene.calls == WHOLE
    scene.calls.clear()
    await scene.keep()
    await scene.work()
    await scene.work()
    await scene.turn.end()
    await scene.turn.end()
    assert scene.calls == ["lend a", "unpark a", "work", "work", "park a", "return a"]


async def test_ranks_with_devices_of_their_own_ask_nobody() -> None:
    scene = Scene(placement="separate")
    await scene.work()
    assert scene.calls == ["work"]
    assert await scene.turn.seats() is None


async def test_a_turn_begins_when_every_engine_has_freed_its_device() -> None:
    scene = Scene()
    scene.bus.busy, scene.bus.away = ["r", "s"], 1
    await scene.work()
    assert scene.calls == ["lend a", "lend a", *WHOLE]


async def test_engines_that_keep_their_devices_get_the_loan_back_and_are_named() -> None:
    scene = Scene(start_timeout_s=0.05)
    scene.bus.busy = ["stubborn"] * 100_000
    with pytest.raises(NotReady, match="stubborn"):
        await scene.work()
    assert set(scene.calls) == {"lend a", "park a", "return a"}


async def test_an_operation_that_fails_ends_even_a_kept_turn() -> None:
    scene = Scene()
    await scene.keep()
    with pytest.raises(ZeroDivisionError):
        async with scene.turn.on_devices(scene.ranks):
            raise ZeroDivisionError
    assert scene.calls[-2:] == ["park a", "return a"]
    assert not scene.turn.kept


async def test_ranks_that_refuse_to_load_are_killed_before_their_devices_are_returned() -> None:
    scene = Scene()
    ranks = Ranks("a", scene.calls, loaded=False)
    with pytest.raises(InvalidInput, match="no such model"):
        async with scene.turn.on_devices(ranks, loaded=False):
            raise InvalidInput("trainer.model", "m", "There is no such model.")
    assert scene.calls == ["lend a", "kill a", "return a"]


async def test_engines_that_keep_their_devices_are_named_before_ranks_have_loaded() -> None:
    scene = Scene(start_timeout_s=0.05)
    scene.bus.busy = ["stubborn"] * 100_000
    with pytest.raises(NotReady, match="stubborn"):
        async with scene.turn.on_devices(Ranks("a", scene.calls, loaded=False), loaded=False):
            pass
    assert scene.calls[-2:] == ["kill a", "return a"]


async def test_devices_of_ranks_that_are_gone_are_returned_all_the_same() -> None:
    scene = Scene()
    async with scene.turn.on_devices(scene.ranks):
        scene.ranks.lost = True
    assert scene.calls[-1] == "return a"


async def test_new_ranks_end_the_turn_of_those_before_them() -> None:
    scene = Scene()
    await scene.keep()
    scene.ranks.lost = True
    scene.calls.clear()
    await scene.work(Ranks("b", scene.calls))
    assert scene.calls == ["return a", *(one.replace(" a", " b") for one in WHOLE)]


async def test_a_bus_that_is_away_at_the_end_of_a_turn_is_asked_again() -> None:
    scene = Scene()
    async with scene.turn.on_devices(scene.ranks):
        scene.bus.away = 3
    assert scene.calls[-1] == "return a"


async def test_a_loan_is_renewed_for_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_turn, "LOAN_S", 0.004)
    scene = Scene()
    async with scene.turn.on_devices(scene.ranks), asyncio.timeout(60):
        for _ in range(4):
            await scene.bus.asked.acquire()
    renewed = scene.calls.count("lend a")
    await asyncio.sleep(0.01)
    assert scene.calls.count("lend a") == renewed


async def test_a_kept_turn_without_operations_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_turn, "KEPT_S", 0.0)
    scene = Scene()
    assert not scene.turn.forgotten
    await scene.keep()
    assert scene.turn.forgotten
    await scene.turn.end()
    assert not scene.turn.forgotten


def member(name: str, node: str, *devices: str, dead: bool = False) -> Member:
    return Member(
        replica_id=name,
        address="http://h",
        state=ReplicaState.DEAD if dead else ReplicaState.JOINING,
        committed_version=None,
        leased=False,
        model="policy",
        max_model_len=128,
        pid=1,
        node_id=node,
        devices=devices,
    )


async def test_ranks_of_a_node_are_in_a_row_and_dead_engines_have_no_seats() -> None:
    scene = Scene(world_size=4)
    scene.bus.members = (
        member("r", "n2", "0", "1"),
        member("before", "n1", "0", dead=True),
        member("s", "n1", "1"),
        member("t", "n1", "0"),
    )
    seats = await scene.turn.seats()
    assert seats is not None
    assert [(seat.node_id, seat.device) for seat in seats] == [
        ("n1", "0"),
        ("n1", "1"),
        ("n2", "0"),
        ("n2", "1"),
    ]


async def test_too_few_engines_are_named_in_time() -> None:
    scene = Scene(start_timeout_s=0.05)
    scene.bus.members = (member("r", "n1", "0"),)
    with pytest.raises(NoResources, match="have 1 devices for 2 ranks"):
        await scene.turn.seats()
