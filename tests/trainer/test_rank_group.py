"""How a group of ranks tells refused input, lost ranks and failed work apart."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from services.protocol.errors import InvalidInput, NoResources, NotReady
from services.protocol.trainer import RankProgress
from services.trainer.config import TrainerConfig
from services.trainer.lead import rank_group
from services.trainer.lead.group_progress import GroupProgress
from services.trainer.lead.rank_group import RankGroup, RankPlacement
from tests.trainer.conftest import own_devices


class FakeRank:
    """An actor handle whose methods do as told, but for `progress` and `others`."""

    def __init__(self, work: Callable[[Any], Awaitable[Any]], **others: Any) -> None:
        self._work = work
        self.progress = SimpleNamespace(
            remote=lambda: answer(RankProgress(phase="work", quiet_s=9.0))
        )
        vars(self).update(others)

    def __getattr__(self, method: str) -> Any:
        return type("Method", (), {"remote": staticmethod(self._work)})


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    ranks: list[Any] = []
    monkeypatch.setattr(rank_group.ray, "put", lambda value: value)
    monkeypatch.setattr(rank_group.ray, "kill", ranks.append)
    monkeypatch.setattr(rank_group, "SETTLE_S", 0.05)
    return ranks


async def answer(value: Any) -> Any:
    return value


async def refuse(value: Any) -> Any:
    raise InvalidInput("batch", value, "Fix it.")


async def die(value: Any) -> Any:
    raise RayActorError


async def fail(value: Any) -> Any:
    raise OSError("no space left")


async def hang(value: Any) -> Any:
    await asyncio.Event().wait()


QUICK = TrainerConfig(model="m", world_size=2, start_timeout_s=0.5, progress_timeout_s=0.5)


def group_of(*works: Callable[[Any], Awaitable[Any]]) -> RankGroup:
    return RankGroup("test", [FakeRank(work) for work in works], GroupProgress(QUICK))


async def test_answers_come_in_rank_order(killed) -> None:
    async def late(value: Any) -> Any:
        await asyncio.sleep(0)
        return value + 1

    assert await group_of(late, answer).call("work", 1) == [2, 1]
    assert not killed


async def test_a_call_that_reaches_only_some_ranks_ends_the_group(killed) -> None:
    def part(rank: int) -> int:
        if rank == 1:
            raise MemoryError("the object store is full")
        return rank

    waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    group = group_of(lambda _: waiting, lambda _: waiting)
    with pytest.raises(MemoryError):
        await group.call("train", rank_group.EachRank(part))
    assert group.lost.is_set()
    assert len(killed) == 2


async def test_input_that_all_ranks_refuse_leaves_them_alive(killed) -> None:
    group = group_of(refuse, refuse)
    with pytest.raises(InvalidInput):
        await group.call("work", 1)
    assert not group.lost.is_set()
    assert not killed


@pytest.mark.parametrize("works", [(refuse, refuse), (answer, hang)])
async def test_a_group_that_does_not_come_up_gives_its_room_back(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch, works: Any
) -> None:
    config = QUICK.model_copy(update={"ranks_per_node": 2})
    ready = answer(None)
    placed = SimpleNamespace(ready=lambda: ready)
    removed: list[Any] = []
    monkeypatch.setattr(rank_group, "placement_group", lambda *_, **__: placed)
    monkeypatch.setattr(rank_group, "remove_placement_group", removed.append)
    monkeypatch.setattr(rank_group.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(RankPlacement, "options", lambda self, rank: {})
    ranks = iter([FakeRank(work, meet=SimpleNamespace(remote=lambda: None)) for work in works])
    started = SimpleNamespace(remote=lambda *_: next(ranks))
    actor = SimpleNamespace(options=lambda **_: started)
    monkeypatch.setattr(rank_group.ray, "remote", lambda _: actor)
    with pytest.raises((InvalidInput, NotReady)):
        await RankGroup.start(config, GroupProgress(config), own_devices(config))
    assert removed == [placed]
    assert len(killed) == 2


async def test_resources_that_no_node_has_are_given_up_and_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = QUICK.model_copy(update={"ranks_per_node": 2, "start_timeout_s": 0.01})
    placed = SimpleNamespace(ready=asyncio.Event().wait)
    removed: list[Any] = []
    monkeypatch.setattr(rank_group, "placement_group", lambda *_, **__: placed)
    monkeypatch.setattr(rank_group, "remove_placement_group", removed.append)
    with pytest.raises(NoResources, match=r"in 0\.01 s: 1 x"):
        await RankPlacement.reserve(config, own_devices(config))
    assert removed == [placed]


async def test_a_dead_rank_takes_the_group_with_it(killed) -> None:
    group = group_of(fail, die)  # the first failure is the echo of the second rank's death
    with pytest.raises(NotReady, match="lost"):
        await group.call("work", 1)
    assert group.lost.is_set()
    assert len(killed) == 2


async def test_a_failure_of_all_ranks_is_not_hidden_behind_a_retry(killed) -> None:
    with pytest.raises(RuntimeError, match="no space left"):
        await group_of(fail, fail).call("work", 1)
    assert len(killed) == 2


async def test_a_rank_left_waiting_for_a_failed_one_is_killed_and_the_cause_is_named(
    killed: list[Any],
) -> None:
    with pytest.raises(NotReady, match="a trainer rank failed in work: no space left"):
        await group_of(fail, hang).call("work", 1)
    assert len(killed) == 2


async def test_nothing_hangs_ranks_that_do_not_answer_are_killed(killed) -> None:
    with pytest.raises(NotReady, match="rank 0 hangs in work: it shows no progress"):
        await group_of(hang, answer).call("work", 1)
    assert len(killed) == 2


async def test_a_lost_group_answers_at_once(killed) -> None:
    group = group_of(answer)
    group.kill("test")
    with pytest.raises(NotReady):
        await group.call("work", 1)
