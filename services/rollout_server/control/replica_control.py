"""Orders that stop one engine: of operators to pause or sleep, of the bus to lend its device."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
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
from services.shared_devices import SharedDevices

if TYPE_CHECKING:  # heavy, and what is here is tested without it
    from vllm.v1.engine.async_llm import AsyncLLM

_STEP_TIMEOUT_S = 60.0
_DEVICE_TIMEOUT_S = 30.0
_REMEMBERED = 64
_WEIGHTS, _KV_CACHE = "weights", "kv_cache"  # vLLM's names of what sleeps


def deepest_sleep(config: RolloutServerConfig) -> int:
    """The deepest level of sleep of such an engine; 0 if it cannot sleep."""
    able = config.device == "cpu" or config.placement == "shared"
    if not able and not config.engine_args.get("enable_sleep_mode"):
        return 0
    # Level 2 would lose the frozen weights of an adapter, which the bus does not send.
    return 1 if config.lora_rank is not None else 2


def level_of_loan(config: RolloutServerConfig) -> int:
    """How deeply an engine sleeps whose device is lent; 0: only its KV cache goes."""
    return 0 if config.kept_on_gpu == "weights" else deepest_sleep(config)


class EngineControl:
    """Carries out orders on one engine.

    It shares `EngineLoader.held` with the loader: a commit neither resumes a paused engine
    nor loads into one that sleeps or whose device is lent.

    Args:
        engine: the engine.
        loader: its versions.
        config: the rollout server's.
        devices: those that it shares with ranks of the trainer, which it has locked; None: it
            shares none.
    """

    def __init__(
        self,
        engine: "AsyncLLM",
        loader: EngineLoader,
        config: RolloutServerConfig,
        *,
        devices: SharedDevices | None = None,
    ) -> None:
        self._engine, self._loader, self._devices = engine, loader, devices
        self._deepest, self._level_of_loan = deepest_sleep(config), level_of_loan(config)
        self._level = 0
        self._lent, self._before_loan = False, Hold.NONE
        self._half_awake, self._lost = False, False
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

    def check(self) -> None:
        """Answer if the engine can follow orders.

        Raises:
            RuntimeError: a wake-up failed half-way, so that vLLM takes the engine to be asleep and
                frees nothing of what has come back; only the end of its processes does.
        """
        if self._lost:
            raise RuntimeError("a wake-up failed half-way; what the engine holds is not known")

    async def until_released(self) -> None:
        """Return when nothing holds the engine."""
        await self._released.wait()

    def _action(self, action: ControlAction) -> Callable[[ControlReplica], Awaitable[None]]:
        return {
            ControlAction.ABORT: self._abort,
            ControlAction.PAUSE: self._pause,
            ControlAction.RESUME: self._resume,
            ControlAction.SLEEP: self._sleep,
            ControlAction.WAKE_UP: self._wake_up,
            ControlAction.RESET_PREFIX_CACHE: self._reset_prefix_cache,
            ControlAction.LEND_DEVICE: self._lend_device,
            ControlAction.TAKE_DEVICE: self._take_device,
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
        level = order.level or 1
        self._refuse_too_deep(level)
        self._refuse_while(Hold.ASLEEP, ControlAction.SLEEP)
        self._refuse_without_weights(ControlAction.SLEEP)
        # As with a pause; and half asleep may have lost its weights.
        self._loader.held = Hold.ASLEEP
        await self._fall_asleep(level)

    async def _wake_up(self, _: ControlReplica) -> None:
        if self._loader.held is not Hold.ASLEEP:
            raise InvalidInput("action", ControlAction.WAKE_UP.value, "It does not sleep.")
        if self._lent:
            raise _lent(ControlAction.WAKE_UP)
        await self._awake()
        self._loader.held = Hold.NONE

    async def _fall_asleep(self, level: int) -> None:
        self._level, self._loader.wake = level, None  # it may be half awake, without a commit
        if level > 1:
            self._loader.lose_weights()
        if level > 0:
            await self._engine.sleep(level, "abort")
        else:
            await pause(self._engine, mode="abort", clear_cache=True)
            await self._engine.release_kv_cache_memory()

    async def _awake(self) -> None:
        self._half_awake = True
        if self._level > 1:
            # vLLM computes again as soon as all memory is there, which must not be before
            # there are weights: the next commit takes the rest.
            await self._engine.wake_up([_WEIGHTS])
            self._loader.wake = self._wake_kv_cache
        else:
            await self._engine.wake_up()
        self._half_awake = False

    async def _wake_kv_cache(self) -> None:
        await self._engine.wake_up([_KV_CACHE])
        if self._loader.held is Hold.PAUSED:  # since before the loan of its device
            await pause(self._engine, mode="abort", clear_cache=True)

    async def _lend_device(self, _: ControlReplica) -> None:
        loader = self._loader
        self._lost = self._half_awake
        self.check()
        if not self._lent and loader.held is not Hold.ASLEEP:  # else nothing is there any more
            if loader.held is not Hold.LENT:  # else the order is repeated, after an error
                self._before_loan, loader.held = loader.held, Hold.LENT
            await self._fall_asleep(self._level_of_loan)
        self._lent = True
        if self._devices is not None:
            self._devices.release()

    async def _take_device(self, _: ControlReplica) -> None:
        if self._devices is not None:
            await self._devices.take(_DEVICE_TIMEOUT_S)
        self._lent = False
        if self._loader.held is Hold.LENT:
            await self._awake()
            self._loader.held = self._before_loan

    async def _reset_prefix_cache(self, _: ControlReplica) -> None:
        self._refuse_while(Hold.ASLEEP, ControlAction.RESET_PREFIX_CACHE)
        if not await self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the engine could not free its blocks")

    def _refuse_too_deep(self, level: int) -> None:
        if level <= self._deepest:
            return
        if self._deepest:
            fix = "The bus sends only an adapter, and the weights below it would be lost; use 1."
            raise InvalidInput("level", level, fix)
        fix = "Set it to true in the deployment file: vLLM must know it at the start."
        raise InvalidInput("rollout_server.engine_args.enable_sleep_mode", False, fix)

    def _refuse_while(self, held: Hold, action: ControlAction) -> None:
        if self._loader.held is Hold.LENT:
            raise _lent(action)
        if self._loader.held is held:
            raise InvalidInput("action", action.value, f"The replica is {held}; use wake_up first.")

    def _refuse_without_weights(self, action: ControlAction) -> None:
        if self._loader.committed is None:
            fix = "The replica has no whole version yet, so it serves nothing; wait for its lease."
            raise InvalidInput("action", action.value, fix)


def _lent(action: ControlAction) -> InvalidInput:
    fix = "The trainer has the replica's device; order it again when its turn is over."
    return InvalidInput("action", action.value, fix)
