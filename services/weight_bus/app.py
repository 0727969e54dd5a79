"""The Serve application that keeps the weight bus actor alive."""

import asyncio
import contextlib
from typing import Any

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import BUS_ACTOR, NAMESPACE
from services.weight_bus.actor import WeightBusActor
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.relay.actor import end_relays

_MAX_CONCURRENCY = 10_000
_CALL_TIMEOUT_S = 20.0
_START_TIMEOUT_S = 300.0
"""For the first answer: on a busy machine the process of an actor takes minutes to start."""
_BUSES, _LOOK_S = 20, 1.0
"""Buses that may die before the first answer, and the pause after each, seconds."""


class WeightBusSupervisor:
    """Creates the actor, watches it, and takes it down with the application."""

    def __init__(self, config: WeightBusConfig) -> None:
        self._config = config
        self._stopped, self._answered = False, False
        self._actor_class = ray.remote(WeightBusActor)  # once: Ray never forgets one
        self._actor = self._get_or_create()

    async def check_health(self) -> None:
        """Answer if the bus answers. Serve awaits the first check without a deadline of its own.

        Raises:
            NotReady: it does not.
        """
        if self._stopped:
            return
        limit_s = _CALL_TIMEOUT_S if self._answered else _START_TIMEOUT_S
        try:
            async with asyncio.timeout(limit_s):
                await self._ask()
        except TimeoutError:
            raise NotReady(f"weight bus: no answer in {limit_s:g} s") from None
        except ray.exceptions.RayActorError as error:
            raise NotReady(f"weight bus: {type(error).__name__}: {error}") from None
        self._answered = True

    async def _ask(self) -> None:
        """Wait for the bus's answer; the first one may have to be another bus's.

        The bus of the supervisor before, found by its name, may be about to end.
        """
        for left in reversed(range(1 if self._answered else _BUSES)):
            self._actor = self._get_or_create()
            try:
                await self._actor.watch.remote(-1, 0.0)
                return
            except ray.exceptions.RayActorError:
                if not left:
                    raise
                await asyncio.sleep(_LOOK_S)

    def __del__(self) -> None:
        # Serve calls it, checks health once more, which must not bring it back, and frees it later.
        if self._stopped:
            return
        self._stopped = True
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            # Not whichever has its name by now: that may be the next supervisor's.
            ray.kill(self._actor, no_restart=True)
        end_relays()

    def _get_or_create(self) -> Any:
        # On the supervisor's node, which a deployment file can choose; on another only if that
        # node is gone.
        here = ray.get_runtime_context().get_node_id()
        return self._actor_class.options(
            name=BUS_ACTOR,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            max_concurrency=_MAX_CONCURRENCY,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
        ).remote(self._config)


def build(config: WeightBusConfig) -> serve.Application:
    """The application "weight_bus": one supervisor of the one actor."""
    deployment: Any = serve.deployment(
        WeightBusSupervisor,
        name="weight_bus",
        num_replicas=1,
        max_ongoing_requests=1000,
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=10.0,
        ray_actor_options={"num_cpus": config.num_cpus},
    )
    return deployment.bind(config)
