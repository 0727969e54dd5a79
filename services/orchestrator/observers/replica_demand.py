"""Number of rollout replicas that a run has work for, from what its trainer waits for."""

import asyncio
import time
from collections.abc import Callable

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.schedule import Slots
from services.protocol.errors import NotReady

LOOK_S = 10.0
_STARVED, _FED = 0.3, 0.05
_UP_LOOKS, _DOWN_LOOKS = 2, 6
_log = Log("orchestrator")


class ReplicaDemand:
    """One replica more while the trainer starves, one less while batches wait for it.

    A trainer that waited for rollouts in three tenths of the time or more, twice in a row,
    is starved. One that hardly ever waits while a whole further batch is scored has more than
    it can take; six looks in a row, since a replica is slower to come than to go. No second
    replica is wanted before the first one serves, so the demand stops at what the cluster
    gives: bounds are the deployment's (`rollout_server.max_replicas`).
    """

    def __init__(self, *, batch_groups: int) -> None:
        self._batch_groups = batch_groups
        self._starved = self._fed = 0
        self._wanted = 0

    def look(self, *, waited: float, ready: int, live: int) -> int:
        """The number of replicas wanted after this look.

        Args:
            waited: share of the time since the last look in which the trainer waited for
                rollouts.
            ready: scored groups that wait for their batch.
            live: replicas in service, also those that an update keeps from their lease.
        """
        self._starved = self._starved + 1 if waited >= _STARVED else 0
        few_waits = waited <= _FED and ready >= self._batch_groups
        self._fed = self._fed + 1 if few_waits else 0
        self._wanted = max(1, self._wanted or live)
        if self._starved >= _UP_LOOKS and live >= self._wanted:
            self._wanted, self._starved = live + 1, 0
        elif self._fed >= _DOWN_LOOKS and live <= self._wanted:
            self._wanted, self._fed = max(1, live - 1), 0
        return self._wanted


async def follow_demand(
    context: RunContext, slots: Callable[[], Slots], *, look_s: float = LOOK_S
) -> None:
    """Say to the weight bus how many replicas are wanted, again and again, until cancelled.

    The bus forgets a wish after a minute, so a bus that was away, and a run that is over, need
    nothing else.
    """
    demand, idle = ReplicaDemand(batch_groups=context.run.batch_groups), context.progress.idle
    before, at = idle.waited_s("rollout"), time.monotonic()
    while True:
        await asyncio.sleep(look_s)
        now, waited_s = time.monotonic(), idle.waited_s("rollout")
        share = (waited_s - before) / (now - at)
        before, at = waited_s, now
        live = context.fleet.in_service
        wanted = demand.look(waited=share, ready=slots().ready, live=live)
        RunMetrics.wanted_replicas.set(wanted, context.tags)
        if wanted != live:
            _log.info("replicas_wanted", **context.tags, wanted=wanted, live=live, waited=share)
        try:
            await context.peers.bus.want_replicas(wanted)
        except NotReady as error:
            _log.warning("bus_not_ready", error=str(error))
