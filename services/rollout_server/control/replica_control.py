"""What operators may do to one engine: end requests, pause, sleep, forget prefixes."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from services.protocol.errors import InvalidInput
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.vllm_patches.engine_pause import pause
from services.rollout_server.weights.engine_loader import EngineLoader

if TYPE_CHECKING:  # heavy, and what is here is tested without it
    from vllm.v1.engine.async_llm import AsyncLLM

_STEP_TIMEOUT_S = 60.0
_REMEMBERED = 64
_WEIGHTS, _KV_CACHE = "weights", "kv_cache"  # vLLM's names of what sleeps


def why_sleepless(config: RolloutServerConfig) -> InvalidInput | None:
    """Why an engine of this configuration cannot sleep; None if it can."""
    if config.device == "cpu":
        # vLLM's CPU worker takes the call, and frees nothing.
        return InvalidInput(
            "action", ControlAction.SLEEP.value, "Only engines on GPUs can; use pause."
        )
    if config.lora_rank is not None:
        # Deep sleep would lose the frozen weights, which the bus does not send.
        fix = "Only engines whose weights the bus delivers can; use pause."
        return InvalidInput("action", ControlAction.SLEEP.value, fix)
    if not config.engine_args.get("enable_sleep_mode"):
        fix = "Set it to true in the deployment file: vLLM must know it at the start."
        return InvalidInput("rollout_server.engine_args.enable_sleep_mode", False, fix)
    return None


class EngineControl:
    """Carries out an operator's orders on one engine.

    It shares `EngineLoader.held` with the loader: a commit neither resumes a paused engine
    nor loads into a sleeping one.

    Args:
        engine: the engine.
        loader: its versions.
        sleepless: why this engine cannot sleep, None if it can.
    """

    def __init__(
        self, engine: "AsyncLLM", loader: EngineLoader, *, sleepless: InvalidInput | None
    ) -> None:
        self._engine, self._loader = engine, loader
        self._sleepless = sleepless
        self._level = 0
        self._done: deque[str] = deque(maxlen=_REMEMBERED)
        self._released = asyncio.Event()
        self._released.set()

    async def carry_out(self, order: ControlReplica, replica_id: str) -> ControlOutcome | None:
        """Do it, and say how it ended; None: it was done before."""
        if order.control_id in self._done:
            return None
        self._done.append(order.control_id)
        started, refusal, error = time.monotonic(), None, None
        try:
            async with asyncio.timeout(_STEP_TIMEOUT_S):
                await self._action(order.action)(order)
        except InvalidInput as refused:
            refusal = refused
        # Edge of an order: every error is reported to the operator.
        except Exception as failure:  # noqa: BLE001
            error = f"{type(failure).__name__}: {failure}"
        if self._loader.held is Hold.NONE:
            self._released.set()
        else:
            self._released.clear()
        return ControlOutcome(
            replica_id=replica_id,
            control_id=order.control_id,
            held=self._loader.held,
            has_weights=self._loader.committed is not None,
            refusal=refusal,
            error=error,
            seconds=time.monotonic() - started,
        )

    async def until_released(self) -> None:
        """Return when no operator holds the engine."""
        await self._released.wait()

    def _action(self, action: ControlAction) -> Callable[[ControlReplica], Awaitable[None]]:
        return {
            ControlAction.ABORT: self._abort,
            ControlAction.PAUSE: self._pause,
            ControlAction.RESUME: self._resume,
            ControlAction.SLEEP: self._sleep,
            ControlAction.WAKE_UP: self._wake_up,
            ControlAction.RESET_PREFIX_CACHE: self._reset_prefix_cache,
        }[action]

    async def _abort(self, _: ControlReplica) -> None:
        await self._engine.abort(list(self._engine.output_processor.request_states), internal=True)

    async def _pause(self, _: ControlReplica) -> None:
        self._refuse_while(Hold.ASLEEP, ControlAction.PAUSE)
        self._refuse_without_weights(ControlAction.PAUSE)
        # Before, not after: an engine that did not answer may be paused.
        self._loader.held = Hold.PAUSED
        await pause(self._engine, mode="abort", clear_cache=True)

    async def _resume(self, _: ControlReplica) -> None:
        self._refuse_while(Hold.ASLEEP, ControlAction.RESUME)
        if not self._loader.torn:
            await self._engine.resume_generation()
        self._loader.held = Hold.NONE

    async def _sleep(self, order: ControlReplica) -> None:
        if self._sleepless is not None:
            raise self._sleepless
        self._refuse_while(Hold.ASLEEP, ControlAction.SLEEP)
        self._refuse_without_weights(ControlAction.SLEEP)
        self._level = order.level or 1
        # As with a pause; and half asleep may have lost its weights.
        self._loader.held = Hold.ASLEEP
        if self._level > 1:
            self._loader.lose_weights()
        await self._engine.sleep(self._level, "abort")

    async def _wake_up(self, _: ControlReplica) -> None:
        if self._loader.held is not Hold.ASLEEP:
            raise InvalidInput("action", ControlAction.WAKE_UP.value, "It does not sleep.")
        if self._level > 1:
            # vLLM computes again as soon as all memory is there, which must not be before
            # there are weights: the next commit takes the rest.
            await self._engine.wake_up([_WEIGHTS])
            self._loader.wake = partial(self._engine.wake_up, [_KV_CACHE])
        else:
            await self._engine.wake_up()
        self._loader.held = Hold.NONE

    async def _reset_prefix_cache(self, _: ControlReplica) -> None:
        self._refuse_while(Hold.ASLEEP, ControlAction.RESET_PREFIX_CACHE)
        if not await self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the engine could not free its blocks")

    def _refuse_while(self, held: Hold, action: ControlAction) -> None:
        if self._loader.held is held:
            raise InvalidInput("action", action.value, f"The replica is {held}; use wake_up first.")

    def _refuse_without_weights(self, action: ControlAction) -> None:
        if self._loader.committed is None:
            fix = "The replica has no whole version yet, so it serves nothing; wait for its lease."
            raise InvalidInput("action", action.value, fix)
