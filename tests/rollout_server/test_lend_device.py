"""An engine whose device is lent to the trainer: a scripted one, and a real one that sleeps."""

from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.replica_control import ControlAction, Hold
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.control.replica_control import EngineControl
from services.rollout_server.weights.engine_loader import Asleep

from .test_engine_loader import stage
from .test_replica_control import Scene


class Locks:
    """The devices' locks; remembers what was done with them."""

    names = ("0",)

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    async def take(self, timeout_s: float) -> None:
        self.calls.append("take")

    def release(self) -> None:
        self.calls.append("release")


async def lending(**settings: Any) -> Scene:
    """An engine in service that shares its device; its calls and those of the locks in order."""
    config = RolloutServerConfig(model="m", placement="shared", device="cuda", **settings)
    scene = await Scene(config).serving(1)
    locks: Any = Locks(scene.engine.calls)
    scene.control = EngineControl(scene.engine, scene.loader, config, devices=locks)
    return scene


async def test_a_lent_device_holds_nothing_when_it_is_released_and_is_taken_first() -> None:
    scene = await lending()
    lent = await scene.do(ControlAction.LEND_DEVICE)
    assert (lent.held, lent.has_weights, lent.error) == (Hold.LENT, False, None)
    assert scene.engine.calls == [("sleep", 2, "abort"), "release"]
    scene.engine.calls.clear()
    assert (await scene.do(ControlAction.TAKE_DEVICE)).held is Hold.NONE
    assert scene.engine.calls == ["take", ("wake", ["weights"])]
    await stage(scene.loader, scene.engine, 2)
    await scene.loader.commit(2)
    assert scene.engine.calls[-1] == ("wake", ["kv_cache"])


async def test_nothing_is_loaded_into_a_lent_device_and_no_operator_disturbs_it() -> None:
    scene = await lending()
    await stage(scene.loader, scene.engine, 2)
    await scene.do(ControlAction.LEND_DEVICE)
    await stage(scene.loader, scene.engine, 2)
    with pytest.raises(Asleep, match="lent"):
        await scene.loader.commit(2)
    for action in (ControlAction.PAUSE, ControlAction.SLEEP, ControlAction.RESET_PREFIX_CACHE):
        refusal = (await scene.do(action)).refusal
        assert isinstance(refusal, InvalidInput)
        assert "trainer has the replica's device" in refusal.fix


async def test_a_second_loan_before_the_weights_came_computes_nothing_without_them() -> None:
    scene = await lending()
    await scene.do(ControlAction.LEND_DEVICE)
    await scene.do(ControlAction.TAKE_DEVICE)
    scene.engine.calls.clear()
    assert (await scene.do(ControlAction.LEND_DEVICE)).held is Hold.LENT
    assert scene.engine.calls == [("sleep", 2, "abort"), "release"]
    await scene.do(ControlAction.TAKE_DEVICE)
    await stage(scene.loader, scene.engine, 2)
    await scene.loader.commit(2)
    assert scene.engine.calls.count(("wake", ["kv_cache"])) == 1


async def test_a_failed_loan_keeps_the_device_and_can_be_ordered_again() -> None:
    scene = await lending()
    scene.engine.error = RuntimeError("CUDA")
    assert (await scene.do(ControlAction.LEND_DEVICE)).error == "RuntimeError: CUDA"
    assert "release" not in scene.engine.calls
    scene.engine.error = None
    assert (await scene.do(ControlAction.LEND_DEVICE)).error is None
    assert scene.engine.calls[-1] == "release"
    assert (await scene.do(ControlAction.TAKE_DEVICE)).held is Hold.NONE


@pytest.mark.parametrize("by", [ControlAction.TAKE_DEVICE, ControlAction.WAKE_UP])
async def test_a_device_does_not_count_as_free_after_a_wake_up_that_failed_half_way(
    by: ControlAction,
) -> None:
    scene = await lending()
    first = ControlAction.LEND_DEVICE if by is ControlAction.TAKE_DEVICE else ControlAction.SLEEP
    await scene.do(first)
    scene.engine.wake_up = _fails  # type: ignore[method-assign]
    assert (await scene.do(by)).error == "RuntimeError: CUDA out of memory"
    scene.control.check()
    scene.engine.calls.clear()
    assert "half-way" in str((await scene.do(ControlAction.LEND_DEVICE)).error)
    assert "release" not in scene.engine.calls
    with pytest.raises(RuntimeError, match="half-way"):
        scene.control.check()


async def test_a_wake_up_that_failed_is_tried_again_and_the_device_can_be_lent() -> None:
    scene = await lending()
    await scene.do(ControlAction.LEND_DEVICE)
    wake_up, scene.engine.wake_up = scene.engine.wake_up, _fails  # type: ignore[method-assign]
    await scene.do(ControlAction.TAKE_DEVICE)
    scene.engine.wake_up = wake_up  # type: ignore[method-assign]
    assert (await scene.do(ControlAction.TAKE_DEVICE)).held is Hold.NONE
    scene.engine.calls.clear()
    assert (await scene.do(ControlAction.LEND_DEVICE)).error is None
    assert scene.engine.calls == [("sleep", 2, "abort"), "release"]


async def test_a_paused_replica_is_paused_again_after_the_loan() -> None:
    scene = await lending()
    await scene.do(ControlAction.PAUSE)
    await scene.do(ControlAction.LEND_DEVICE)
    assert (await scene.do(ControlAction.TAKE_DEVICE)).held is Hold.PAUSED
    await stage(scene.loader, scene.engine, 2)
    scene.engine.calls.clear()
    await scene.loader.commit(2)
    assert scene.engine.calls[-2:] == [("wake", ["kv_cache"]), ("pause", "abort", True)]


async def test_a_replica_that_an_operator_put_to_sleep_wakes_up_only_after_the_loan() -> None:
    scene = await lending()
    await scene.do(ControlAction.SLEEP, 1)
    assert (await scene.do(ControlAction.LEND_DEVICE)).held is Hold.ASLEEP
    refused = await scene.do(ControlAction.WAKE_UP)
    assert refused.refusal is not None
    assert (await scene.do(ControlAction.TAKE_DEVICE)).held is Hold.ASLEEP
    assert (await scene.do(ControlAction.WAKE_UP)).held is Hold.NONE


async def test_frozen_weights_below_an_adapter_wait_in_host_memory() -> None:
    scene = await lending(lora_rank=4)
    assert (await scene.do(ControlAction.LEND_DEVICE)).has_weights
    assert scene.engine.calls[0] == ("sleep", 1, "abort")


async def test_weights_that_stay_are_served_again_at_once() -> None:
    scene = await lending(kept_on_gpu="weights")
    freed = []
    scene.engine.release_kv_cache_memory = _noting(freed)  # type: ignore[attr-defined]
    lent = await scene.do(ControlAction.LEND_DEVICE)
    assert (lent.held, lent.has_weights, freed) == (Hold.LENT, True, ["kv_cache"])
    await scene.do(ControlAction.TAKE_DEVICE)
    assert scene.engine.calls[-1] == ("wake", None)
    assert scene.loader.committed_version == 1


async def _fails(tags: list[str] | None = None) -> bool:
    raise RuntimeError("CUDA out of memory")


def _noting(freed: list[str]) -> Any:
    async def release() -> None:
        freed.append("kv_cache")

    return release
