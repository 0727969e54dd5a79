"""The ranks of a trainer, which are started, called and lost together."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from services.observability.log import Log
from services.observability.metrics import TrainerMetrics
from services.protocol.errors import InvalidInput, NoResources, NotReady
from services.protocol.placement import SharedSeat
from services.protocol.trainer import RANK_PREFIX
from services.protocol.weights.weight_bus import NAMESPACE
from services.side_by_side import cancel
from services.trainer.config import TrainerConfig
from services.trainer.lead.device_turn import DeviceTurn
from services.trainer.lead.group_progress import GroupProgress
from services.trainer.rank.rank import TrainerRank
from services.trainer.rank.rank_messages import RankModel
from services.warm_workers import Stage, warmed

SETTLE_S = 5.0
"""After one rank failed, how long the others may take to say what happened to them: the
first error is often only the echo of another rank's death."""

_log = Log("trainer")


class RankPlacement:
    """Resources for all ranks, reserved at once where `ranks_per_node` says how many share a node.

    So many ranks in a row are then on one node, which is what `model_copies` counts on, and no
    two trainers can each hold half of the GPUs that one needs. Ranks that share devices with
    engines are put beside them, on `seats`.
    """

    def __init__(
        self,
        config: TrainerConfig,
        group: PlacementGroup | None = None,
        seats: tuple[SharedSeat, ...] | None = None,
    ) -> None:
        self._config, self._group, self._seats = config, group, seats

    @classmethod
    async def reserve(cls, config: TrainerConfig, devices: DeviceTurn) -> "RankPlacement":
        """Wait for the resources.

        Raises:
            NoResources: nodes do not have them within `start_timeout_s`.
        """
        if (seats := await devices.seats()) is not None:
            return cls(config, seats=seats)
        if config.ranks_per_node is None:
            return cls(config)
        bundles = list(config.rank_bundles)
        group = placement_group(bundles, strategy="PACK")
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await group.ready()
        except BaseException as error:
            remove_placement_group(group)
            if not isinstance(error, TimeoutError):
                raise
            raise NoResources(
                f"no resources for the trainer's ranks in {config.start_timeout_s:g} s: "
                f"{len(bundles)} x {bundles[0]}, each on one node"
            ) from None
        return cls(config, group)

    def options(self, rank: int) -> dict[str, Any]:
        """Ray options of a rank."""
        config = self._config
        asked: dict[str, Any] = {"num_cpus": config.rank_num_cpus, "num_gpus": config.gpus_per_rank}
        asked |= warmed(Stage.TRAINER)
        if (seat := self.seat(rank)) is not None:
            here = NodeAffinitySchedulingStrategy(seat.node_id, soft=False)
            return asked | {"num_gpus": 0, "scheduling_strategy": here}
        if self._group is None:
            return asked | {"resources": config.rank_resources}
        assert config.ranks_per_node is not None
        return asked | {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group,
                placement_group_bundle_index=rank // config.ranks_per_node,
            )
        }

    def seat(self, rank: int) -> SharedSeat | None:
        """The device of an engine that a rank shares; None: it shares none."""
        return self._seats[rank] if self._seats is not None else None

    def release(self) -> None:
        """Release the resources; safe to call again."""
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)


@dataclass(frozen=True)
class EachRank:
    """An argument of which every rank gets its own.

    Attributes:
        of_rank: makes that of a rank, when it is sent.
    """

    of_rank: Callable[[int], Any]


class RankGroup:
    """Ranks that live and die together.

    Once a rank is gone or a call went wrong in the middle, collectives no longer match, so
    the group kills all its ranks, sets `lost` and answers every further call with `NotReady`.

    Attributes:
        lost: set when the ranks have ended.
        model: what the ranks loaded.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[Any],
        progress: GroupProgress,
        placement: RankPlacement | None = None,
    ) -> None:
        self.name = name
        self._progress, self._placement = progress, placement
        self.lost = asyncio.Event()
        self.model = RankModel(parameters=0, tensors=(), buckets=(), canary=())
        self._ranks = list(ranks)
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, config: TrainerConfig, progress: GroupProgress, devices: DeviceTurn
    ) -> "RankGroup":
        """Start the ranks, let them meet and load the model, in a turn of theirs.

        Raises:
            InvalidInput: the model cannot be loaded.
            NotReady: a rank died, hung or did not start in `start_timeout_s`.
        """
        name = uuid.uuid4().hex[:8]
        placement = await RankPlacement.reserve(config, devices)
        actor, ranks = ray.remote(TrainerRank), []
        for rank in range(config.world_size):
            options = {"max_restarts": 0} | placement.options(rank) | _known_as(config, name, rank)
            seat = placement.seat(rank)
            ranks.append(actor.options(**options).remote(config, name, rank, seat))
        group = cls(name, ranks, progress, placement)
        try:
            await group._processes_up(config.start_timeout_s)
            async with devices.on_devices(group, loaded=False):
                await group._join()
        except BaseException:
            group.kill("it never came up")  # Ray would keep the reserved resources
            raise
        group._watch = asyncio.create_task(group._watch_ranks())
        _log.info("ranks_up", group=name, ranks=len(ranks), parameters=group.model.parameters)
        return group

    async def _processes_up(self, timeout_s: float) -> None:
        self._progress.begin(range(len(self._ranks)), "starting")
        asked = [asyncio.ensure_future(_answer(rank.progress.remote())) for rank in self._ranks]
        try:
            done, pending = await asyncio.wait(
                asked, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
            )
        finally:
            self._progress.end()
            await cancel(*asked)
        self._raise_failure(_failures(list(done)), len(asked), "start")
        if pending:
            which = [rank for rank, task in enumerate(asked) if task in pending]
            raise NotReady(f"processes of trainer ranks {which} did not start in {timeout_s:g} s")

    async def _join(self) -> None:
        self._progress.begin(range(len(self._ranks)), "starting")
        place = self._ranks[0].meet.remote()
        joining = [rank.join.remote(place) for rank in self._ranks]
        self.model, *_ = await self._gather(joining, "join")

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call every rank with the same arguments, but for `EachRank`; answers in rank order.

        Raises:
            InvalidInput: the ranks refused the arguments; the group lives on.
            NotReady: a rank died, hung or failed without the others, or the group was lost before.
            RuntimeError: every rank failed.
        """
        if self.lost.is_set():
            raise NotReady("the trainer's ranks are restarting")
        self._progress.begin(range(len(self._ranks)), method)
        try:
            calls = await self._send(method, args)
        except BaseException as error:  # ranks that were called wait for the others
            self._progress.end()
            self.kill(f"{method} was not sent to all ranks: {error!r}")
            raise
        return await self._gather(calls, method)

    async def _send(self, method: str, args: Sequence[Any]) -> list[Any]:
        # Arguments go to the object store once, not once a rank.
        same = [None if isinstance(one, EachRank) else ray.put(one) for one in args]
        calls = []
        for rank, handle in enumerate(self._ranks):
            own = [
                ray.put(one.of_rank(rank)) if isinstance(one, EachRank) else reference
                for one, reference in zip(args, same, strict=True)
            ]
            calls.append(getattr(handle, method).remote(*own))
            await asyncio.sleep(0)  # a part may be large
        return calls

    def kill(self, reason: str) -> None:
        """End all ranks; safe to call again."""
        if self.lost.is_set():
            return
        self.lost.set()
        _log.info("ranks_end", group=self.name, why=reason)
        for rank in self._ranks:
            ray.kill(rank)
        if self._placement is not None:
            self._placement.release()

    async def close(self) -> None:
        """Kill the ranks and end the watch."""
        self.kill("closed")
        await cancel(self._watch)

    async def _gather(self, calls: Sequence[Any], method: str) -> list[Any]:
        tasks = [asyncio.ensure_future(_answer(call)) for call in calls]
        polls = [asyncio.create_task(self._follow(rank)) for rank in self._ranks]
        try:
            hung = await self._end_or_hang(tasks)
            if not hung and not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=SETTLE_S)
        finally:
            self._progress.end()
            TrainerMetrics.quiet.set(0.0)
            for task in (*tasks, *polls):
                task.cancel()
        if hung:
            self.kill(f"{method}: {hung}")
            raise NotReady(f"the trainer's ranks did not finish {method}: {hung}")
        self._raise_failure(_failures(tasks), len(tasks), method)
        return [task.result() for task in tasks]

    async def _end_or_hang(self, tasks: "Sequence[asyncio.Task[Any]]") -> str | None:
        """Wait until all have ended or one has failed, or return which rank hangs."""
        while True:
            _, pending = await asyncio.wait(
                tasks, timeout=self._progress.look_s, return_when=asyncio.FIRST_EXCEPTION
            )
            if not pending or _failures(tasks):
                return None
            self._progress.at_work = [i for i, task in enumerate(tasks) if not task.done()]
            slowest = self._progress.slowest
            TrainerMetrics.quiet.set(slowest.quiet_s if slowest else 0.0)
            if hung := self._progress.hung():
                return hung

    async def _follow(self, rank: Any) -> None:
        """Ask the rank again and again what it does; its death is told by the call itself."""
        while True:
            try:
                self._progress.report(await _answer(rank.progress.remote()))
            except RayError:
                return
            await asyncio.sleep(self._progress.look_s)

    def _raise_failure(self, failures: list[BaseException], ranks: int, method: str) -> None:
        """Tell refused input, a dead rank and a fault of the work apart."""
        if not failures:
            return
        refused = [error for error in failures if isinstance(error, InvalidInput)]
        if len(refused) == ranks:
            raise refused[0]
        self.kill(f"{method}: {failures[0]}")
        if refused:
            raise refused[0]
        if any(isinstance(error, RayActorError) for error in failures):
            raise NotReady(f"a trainer rank was lost during {method}")
        if len(failures) < ranks:  # the others are done, or wait for it in a collective
            raise NotReady(f"a trainer rank failed in {method}: {failures[0]}")
        raise RuntimeError(f"the trainer's ranks failed in {method}: {failures[0]}")

    async def _watch_ranks(self) -> None:
        """Notice a rank's death at once, also while nothing is being called."""
        watches = [asyncio.ensure_future(_answer(rank.follow_bus.remote())) for rank in self._ranks]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        self.kill(f"a rank ended: {next(iter(done)).exception()}")


def _known_as(config: TrainerConfig, group: str, rank: int) -> dict[str, Any]:
    """Ray options that name the rank, where the configuration allows fault injection."""
    if not config.allow_fault_injection:
        return {}
    return {"name": f"{RANK_PREFIX}{group}/{rank}", "namespace": NAMESPACE}


async def _answer(reference: Any) -> Any:
    try:
        return await reference
    except RayTaskError as error:
        raise error.cause from None


def _failures(tasks: Sequence["asyncio.Task[Any]"]) -> list[BaseException]:
    done = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in done if (error := task.exception()) is not None]
