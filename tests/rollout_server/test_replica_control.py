"""What operators may do to an engine, against a scripted one."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from services.protocol.weights.replica_control import (
    ControlAction,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.control.replica_control import EngineControl, deepest_sleep
from services.rollout_server.weights.engine_loader import Asleep, EngineLoader

from .test_engine_loader import ScriptedEngine, loader, stage

IDS = map(str, itertools.count())
ON_CPU = RolloutServerConfig(model="m")


class ControllableEngine(ScriptedEngine):
    """One that can sleep, with requests."""

    def __init__(self) -> None:
        super().__init__()
        self.output_processor = SimpleNamespace(request_states={"a": None, "b": None})
        self.error: Exception | None = None
        self.freed = True

    async def abort(self, request_id: list[str], internal: bool = False) -> None:
        self.calls.append(("abort", request_id, internal))

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        self.calls.append(("reset", reset_running_requests))
        return self.freed

    async def sleep(self, level: int = 1, mode: Any = "abort") -> None:
        self.calls.append(("sleep", level, mode))
        if self.error is not None:
            raise self.error

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        self.calls.append(("wake", tags))
        return True


class Scene:
    def __init__(self, config: RolloutServerConfig = ON_CPU) -> None:
        self.engine = ControllableEngine()
        self.loader: EngineLoader = loader(self.engine)
        self.control = EngineControl(self.engine, self.loader, config)

    async def serving(self, version: int = 1) -> "Scene":
        await stage(self.loader, self.engine, version)
        await self.loader.commit(version)
        self.engine.calls.clear()
        return self

    async def do(self, action: ControlAction, level: int | None = None) -> ControlOutcome:
        order = ControlReplica(control_id=next(IDS), action=action, level=level)
        outcome = await self.control.carry_out(order, "r")
        assert outcome is not None
        return outcome


async def test_a_commit_does_not_resume_what_an_operator_has_paused() -> None:
    scene = await Scene().serving(1)
    paused = await scene.do(ControlAction.PAUSE)
    assert (paused.held, paused.error, paused.refusal) == (Hold.PAUSED, None, None)
    await stage(scene.loader, scene.engine, 2)
    await scene.loader.commit(2)
    assert scene.engine.calls == ["open_update", ("finish", "2")]
    assert scene.loader.committed_version == 2
    assert (await scene.do(ControlAction.RESUME)).held is Hold.NONE
    assert scene.engine.calls[-1] == "resume"


async def test_a_torn_engine_is_not_resumed_by_an_operator() -> None:
    scene = await Scene().serving(1)
    await scene.do(ControlAction.PAUSE)
    await stage(scene.loader, scene.engine, 2)
    scene.engine.torn, scene.engine.finish_error = True, RuntimeError("half-way")
    with pytest.raises(RuntimeError, match="half-way"):
        await scene.loader.commit(2)
    assert not (await scene.do(ControlAction.RESUME)).has_weights
    assert "resume" not in scene.engine.calls
    scene.engine.torn, scene.engine.finish_error = False, None
    await stage(scene.loader, scene.engine, 3)
    await scene.loader.commit(3)
    assert scene.engine.calls[-1] == "resume"


async def test_an_engine_that_dropped_its_weights_computes_nothing_before_the_next_commit() -> None:
    scene = await Scene().serving(1)
    slept = await scene.do(ControlAction.SLEEP, 2)
    assert (slept.held, slept.has_weights) == (Hold.ASLEEP, False)
    assert scene.engine.calls == [("sleep", 2, "abort")]
    scene.engine.calls.clear()
    awake = await scene.do(ControlAction.WAKE_UP)
    assert (awake.held, awake.has_weights) == (Hold.NONE, False)
    # vLLM resumes by itself once all memory is back, so the KV cache must come last.
    assert scene.engine.calls == [("wake", ["weights"])]
    await stage(scene.loader, scene.engine, 1)
    await scene.loader.commit(1)
    assert scene.engine.calls == ["open_update", ("finish", "1"), ("wake", ["kv_cache"])]
    await stage(scene.loader, scene.engine, 2)
    await scene.loader.commit(2)
    calls = [("pause", "keep", True), "open_update", ("finish", "2"), "resume"]
    assert scene.engine.calls == calls


async def test_a_sleeping_engine_takes_no_commit_and_keeps_its_weights_at_level_1() -> None:
    scene = await Scene().serving(1)
    await stage(scene.loader, scene.engine, 2)
    assert (await scene.do(ControlAction.SLEEP, 1)).has_weights
    with pytest.raises(Asleep, match="must wake up"):
        await scene.loader.commit(2)
    assert (await scene.do(ControlAction.WAKE_UP)).held is Hold.NONE
    assert scene.engine.calls == [("sleep", 1, "abort"), ("wake", None)]
    assert scene.loader.committed_version == 1


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ControlAction.SLEEP, ControlAction.SLEEP),
        (ControlAction.SLEEP, ControlAction.PAUSE),
        (ControlAction.SLEEP, ControlAction.RESUME),
        (ControlAction.SLEEP, ControlAction.RESET_PREFIX_CACHE),
        (ControlAction.ABORT, ControlAction.WAKE_UP),
    ],
)
async def test_what_does_not_fit_the_engines_state_is_refused(
    first: ControlAction, then: ControlAction
) -> None:
    scene = await Scene().serving()
    await scene.do(first, 1 if first is ControlAction.SLEEP else None)
    scene.engine.calls.clear()
    refusal = (await scene.do(then)).refusal
    assert refusal is not None
    assert (refusal.field, refusal.value) == ("action", then)
    assert scene.engine.calls == []


async def test_a_replica_without_weights_is_not_paused_nor_put_to_sleep() -> None:
    scene = Scene()
    for action in (ControlAction.PAUSE, ControlAction.SLEEP):
        refusal = (await scene.do(action)).refusal
        assert refusal is not None
        assert "wait for its lease" in refusal.fix
    assert scene.engine.calls == []


async def test_a_failure_half_way_is_reported_with_what_the_engine_is_held_from_now() -> None:
    scene = await Scene().serving()
    scene.engine.error = RuntimeError("out of memory")
    slept = await scene.do(ControlAction.SLEEP, 2)
    assert slept.error == "RuntimeError: out of memory"
    assert (slept.held, slept.has_weights) == (Hold.ASLEEP, False)
    scene.engine.freed = False
    await scene.do(ControlAction.WAKE_UP)
    assert "blocks" in str((await scene.do(ControlAction.RESET_PREFIX_CACHE)).error)


async def test_an_order_that_is_delivered_again_is_carried_out_once() -> None:
    scene = await Scene().serving()
    order = ControlReplica(control_id="x", action=ControlAction.ABORT, level=None)
    assert await scene.control.carry_out(order, "r") is not None
    assert await scene.control.carry_out(order, "r") is None
    assert scene.engine.calls == [("abort", ["a", "b"], True)]


async def test_who_waits_for_an_answer_waits_until_the_engine_is_released() -> None:
    scene = await Scene().serving()
    await scene.do(ControlAction.PAUSE)
    waiting = asyncio.create_task(scene.control.until_released())
    await asyncio.sleep(0)
    assert not waiting.done()
    await scene.do(ControlAction.RESUME)
    await asyncio.wait_for(waiting, 300)


def test_an_engine_sleeps_only_as_deep_as_its_device_and_its_arguments_allow() -> None:
    on_gpu = ON_CPU.model_copy(update={"device": "cuda"})
    told = on_gpu.model_copy(update={"engine_args": {"enable_sleep_mode": True}})
    shared = on_gpu.model_copy(update={"placement": "shared"})
    assert [deepest_sleep(one) for one in (ON_CPU, on_gpu, told, shared)] == [2, 0, 2, 2]
    adapted = told.model_copy(update={"lora_rank": 4})
    assert deepest_sleep(adapted) == 1  # nobody could send the frozen weights again
