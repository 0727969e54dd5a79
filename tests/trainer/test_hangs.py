"""Real ranks that stand still in a start, load, step or save, and one that is only slow."""

import asyncio
import inspect
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from services.protocol.errors import NotReady
from services.protocol.trainer import RunStart
from services.trainer.config import TrainerConfig
from services.trainer.lead import rank_group
from services.trainer.lead.group_progress import GroupProgress
from services.trainer.lead.rank_group import EachRank, RankGroup
from tests.chaos import calls
from tests.slow import first_of
from tests.trainer.conftest import RankForks, own_devices
from tests.trainer.halt import Halt

PROGRESS_S = 6.0


class RankProcess:
    """Stands for the Ray handle of a rank in a process of its own."""

    def __init__(self, forks: RankForks, path: Path, rank: int, *args: Any) -> None:
        self._path = str(path)
        self._connection, self._pid = forks.rank(2, rank)
        self._connection.send(("serve_actor", (self._path, *args)))

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(
            remote=lambda *args: asyncio.ensure_future(self._call(method, *args))
        )

    async def _call(self, method: str, *args: Any) -> Any:
        # Ray resolves references among the arguments, too.
        given = [await one if inspect.isawaitable(one) else one for one in args]
        while True:
            try:
                return await calls.call(self._path, method, *given)
            except calls.Gone:
                raise RayActorError from None
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.02)  # it has yet to open its socket

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._connection.close()


@pytest.fixture
def started(
    rank_forks: RankForks, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Halt], Any]:
    @asynccontextmanager
    async def start(halt: Halt) -> AsyncIterator[RankGroup]:
        """A group of two whose second rank halts."""
        made: list[RankProcess] = []

        def new_rank(config: TrainerConfig, group: str, rank: int, _: None) -> RankProcess:
            path, how = tmp_path / f"{rank}", halt if rank == 1 else None
            made.append(RankProcess(rank_forks, path, rank, config, group, how))
            return made[-1]

        actor = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=new_rank))
        fake_ray = SimpleNamespace(
            remote=lambda _: actor, put=lambda value: value, kill=lambda rank: rank.kill()
        )
        monkeypatch.setattr(rank_group, "ray", fake_ray)
        config = TrainerConfig(
            model=str(tiny_model),
            world_size=2,
            start_timeout_s=2 * PROGRESS_S,
            progress_timeout_s=PROGRESS_S,
        )
        group = None
        try:
            group = await RankGroup.start(config, GroupProgress(config), own_devices(config))
            yield group
        finally:
            if group is not None:
                await group.close()
            for rank in made:
                rank.kill()

    return start


def trained(group: RankGroup, start: RunStart, batch: Any) -> Coroutine[Any, Any, list[Any]]:
    """A train step, planned as by the process that leads the ranks."""
    plan = group.model.plan(batch.built, start)
    return group.call("train", EachRank(plan.part), 0, 1)


@pytest.mark.parametrize("phase", first_of(["starting", "loading"]))
async def test_a_rank_that_freezes_before_it_has_loaded_is_named(
    started: Callable[[Halt], Any], phase: str
) -> None:
    with pytest.raises(NotReady, match=r"join: rank 1 hangs in .*: its process does not"):
        async with started(Halt(phase, "freeze")):
            pass


@pytest.mark.parametrize(
    ("halt", "said"),
    first_of(
        [
            (Halt("optimizer", "block"), "train: rank 1 hangs in optimizer: it shows no progress"),
            (Halt("optimizer", "freeze"), "train: rank 1 hangs in .*: its process does not answer"),
            (Halt("saving", "freeze"), "save: rank 1 hangs in .*: its process does not answer"),
            (Halt("saving", "block"), "save: rank 1 hangs in saving: it shows no progress"),
        ]
    ),
)
async def test_a_rank_that_stands_still_in_a_step_or_save_is_named(
    started: Callable[[Halt], Any],
    make_start: Callable[..., RunStart],
    make_batch: Callable[..., Any],
    halt: Halt,
    said: str,
) -> None:
    async with started(halt) as group:
        start = make_start()
        await group.call("start_run", start, 0)
        if halt.phase == "saving":
            await trained(group, start, make_batch(1))
            call = group.call("save", 1, None, True)
        else:
            call = trained(group, start, make_batch(1))
        with pytest.raises(NotReady, match=said):
            await call
        assert group.lost.is_set()


async def test_a_step_that_takes_longer_than_every_limit_goes_on_while_it_computes(
    started: Callable[[Halt], Any],
    make_start: Callable[..., RunStart],
    make_batch: Callable[..., Any],
) -> None:
    slow = Halt("micro-batch", "compute", nth=2, seconds=1.5 * PROGRESS_S)
    async with started(slow) as group:
        start = make_start()
        await group.call("start_run", start, 0)
        steps = await trained(group, start, make_batch(1))
        assert steps[1].seconds["forward_backward"] > PROGRESS_S
        assert not group.lost.is_set()
