"""Commit order and torn engines, against a scripted engine."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from services.protocol.weights.place import Place
from services.protocol.weights.weight_bus import StageWeights
from services.protocol.weights.weights import Dtype, TensorSpec, WeightManifest
from services.rollout_server.weights.engine_loader import EngineLoader, NothingStaged, OtherModel
from services.rollout_server.weights.own_model import OwnModel
from services.transport.shared_memory import SharedBuffer
from services.transport.staged_version import StageFailed

PLACE = Place(pid=1, fd=2, inode=3, offset=0)


class ScriptedEngine:
    """Writes down what is asked of it; fails or hangs where told to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.finish_error: Exception | None = None
        self.hang = False
        self.torn = False
        self.pageable = False
        self.loaded: int | None = None
        self.renderer = self.engine_core = self

    async def clear_mm_cache_async(self) -> None:
        pass

    async def pause_scheduler_async(self, *, mode: str, clear_cache: bool) -> None:
        self.calls.append(("pause", mode, clear_cache))

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append(("finish", weight_version))
        if self.hang:
            await asyncio.Event().wait()
        if self.finish_error is not None:
            raise self.finish_error
        self.loaded = int(str(weight_version))

    async def collective_rpc(
        self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()
    ) -> list[Any]:
        self.calls.append(method)
        if method == "open_update":
            return [False, self.pageable]
        if self.hang:
            raise TimeoutError
        return [{"torn": torn, "version": self.loaded} for torn in (False, self.torn)]


class ScriptedReceiver:
    """Has every version at once."""

    copy = None

    def __init__(self) -> None:
        self.received: list[StageWeights] = []
        self.buffer = SharedBuffer(64)

    async def receive(self, order: StageWeights) -> float:
        self.received.append(order)
        return 0.1

    def staged_at(self) -> Place:
        return self.buffer.place(0)

    def keep(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def drop(self, prefix: str) -> None:
        pass


def loader(engine: ScriptedEngine, in_flight: str = "keep", timeout_s: float = 5.0) -> EngineLoader:
    receiver: Any = ScriptedReceiver()
    return EngineLoader(engine, receiver, in_flight=in_flight, commit_timeout_s=timeout_s)


def manifest_of(version: int) -> WeightManifest:
    return WeightManifest(
        version=version, train_step=version, tensors=(), buckets=(), digests=((),)
    )


async def stage(one: EngineLoader, engine: ScriptedEngine, version: int) -> None:
    await one.stage(StageWeights(manifest=manifest_of(version), links=()))
    engine.calls.clear()


@pytest.mark.parametrize(
    ("in_flight", "pause"),
    [
        ("keep", ("pause", "keep", True)),
        ("keep_stale", ("pause", "keep", False)),
        ("drain", ("pause", "wait", True)),
        ("abort", ("pause", "abort", True)),
    ],
)
async def test_a_commit_stops_loads_labels_and_goes_on(in_flight: str, pause: Any) -> None:
    engine = ScriptedEngine()
    one = loader(engine, in_flight)
    await stage(one, engine, 4)
    await one.commit(4)
    assert engine.calls == [pause, "open_update", ("finish", "4"), "resume"]
    assert one.committed_version == 4


async def test_a_stage_takes_no_turn_of_the_engines_loop() -> None:
    """Whatever became of the version before: a stage that asks the engine leaves a call here."""
    engine = ScriptedEngine()
    one = loader(engine)
    for version, engine.finish_error in enumerate((None, RuntimeError("half-way"), None)):
        for _ in range(2):
            await one.stage(StageWeights(manifest=manifest_of(version), links=()))
            one.drop("e1")
        await one.stage(StageWeights(manifest=manifest_of(version), links=()))
        assert engine.calls == []
        with contextlib.suppress(RuntimeError):
            await one.commit(version)
        engine.calls.clear()
    assert one.committed_version == 2


async def test_a_version_of_a_relay_that_is_gone_is_not_staged_and_one_that_is_staged_stays() -> (
    None
):
    engine, relay = ScriptedEngine(), SharedBuffer(64)
    one, place = loader(engine), relay.place(0)
    await one.stage(StageWeights(manifest=manifest_of(4), place=place))
    del relay
    await one.commit(4)
    with pytest.raises(StageFailed, match="shared memory: "):
        await one.stage(StageWeights(manifest=manifest_of(5), place=place))
    assert one.committed_version == 4


async def test_a_commit_says_whether_a_worker_loaded_from_pageable_memory() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    for version, engine.pageable in enumerate((False, True, False)):
        await stage(one, engine, version)
        await one.commit(version)
        assert one.pageable == engine.pageable


async def test_a_commit_that_was_carried_out_is_not_carried_out_again() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    await stage(one, engine, 4)
    await one.commit(4)
    engine.calls.clear()
    assert await one.commit(4) == 0.0
    assert engine.calls == []


async def test_a_refused_commit_leaves_the_version_and_goes_on() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    await stage(one, engine, 4)
    await one.commit(4)
    await stage(one, engine, 5)
    engine.finish_error = RuntimeError("no such tensor")
    with pytest.raises(RuntimeError, match="no such tensor"):
        await one.commit(5)
    assert (one.committed_version, one.torn) == (4, False)
    assert engine.calls[-1] == "resume"


async def test_one_torn_worker_keeps_the_engine_paused_until_a_commit_succeeds() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    await stage(one, engine, 4)
    await one.commit(4)
    engine.calls.clear()
    await stage(one, engine, 5)
    engine.finish_error, engine.torn = RuntimeError("half-way"), True
    with pytest.raises(RuntimeError):
        await one.commit(5)
    assert (one.committed_version, one.torn) == (None, True)
    assert "resume" not in engine.calls
    engine.finish_error, engine.torn = None, False
    await stage(one, engine, 5)
    await one.commit(5)
    assert (one.committed_version, one.torn) == (5, False)
    assert engine.calls[-1] == "resume"


async def test_a_load_that_misses_its_deadline_counts_as_torn() -> None:
    engine = ScriptedEngine()
    one = loader(engine, timeout_s=0.02)
    await stage(one, engine, 1)
    engine.hang = True
    with pytest.raises(TimeoutError):
        await one.commit(1)
    assert one.torn
    assert "resume" not in engine.calls


async def test_a_commit_of_what_is_not_staged_does_not_stop_generation() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    await stage(one, engine, 4)
    one.drop("e1")
    for version in (4, 5):
        engine.calls.clear()
        with pytest.raises(NothingStaged, match=f"version {version}"):
            await one.commit(version)
        assert engine.calls == []


async def test_a_version_that_is_sent_again_is_loaded_again() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    for _ in range(2):
        await stage(one, engine, 4)
        await one.commit(4)
        assert ("finish", "4") in engine.calls


async def test_a_distrusted_version_is_not_claimed_until_a_commit() -> None:
    engine = ScriptedEngine()
    one = loader(engine)
    await stage(one, engine, 4)
    await one.commit(4)
    one.distrust(3)
    assert one.committed_version == 4, "about a version before"
    one.distrust(4)
    assert one.committed_version is None
    await stage(one, engine, 4)
    await one.commit(4)
    assert one.committed_version == 4


def test_a_buffer_has_an_element_type_of_its_own() -> None:
    spec = TensorSpec(name="gate.bias", dtype=Dtype.FLOAT32, shape=(4,), shard_numels=(4,))
    for is_buffer in (True, False):
        manifest = WeightManifest(
            version=1,
            train_step=1,
            tensors=(replace(spec, is_buffer=is_buffer),),
            buckets=((0, 1),),
            digests=(("0",),),
        )
        refused = OwnModel(dtype="bfloat16", vocabulary=272).difference(manifest) is not None
        assert refused != is_buffer


@pytest.mark.parametrize(
    ("dtype", "vocabulary", "problem"),
    [
        (Dtype.BFLOAT16, 272, "is bfloat16, but this replica computes in float32; rollout_server"),
        (Dtype.FLOAT32, 300, "has 300 rows, but the model here has 272 tokens; rollout_server"),
    ],
)
async def test_a_first_version_of_another_dtype_or_vocabulary_is_refused_before_its_first_byte(
    dtype: Dtype, vocabulary: int, problem: str
) -> None:
    engine, receiver = ScriptedEngine(), ScriptedReceiver()
    one = EngineLoader(
        engine,  # type: ignore[arg-type]
        receiver,  # type: ignore[arg-type]
        in_flight="keep",
        commit_timeout_s=5.0,
        own_model=OwnModel(dtype="float32", vocabulary=272),
    )
    for name, place in (("model.embed_tokens.weight", None), ("lm_head.weight", PLACE)):
        spec = TensorSpec(
            name=name, dtype=dtype, shape=(vocabulary, 4), shard_numels=(vocabulary * 4,)
        )
        manifest = WeightManifest(
            version=1, train_step=1, tensors=(spec,), buckets=((0, 1),), digests=(("0",),)
        )
        with pytest.raises(OtherModel, match=f"tensors: {name} {problem}"):
            await one.stage(StageWeights(manifest=manifest, place=place))
    assert engine.calls == []
    assert receiver.received == []
    await stage(one, engine, 2)
    await one.commit(2)


async def test_a_commit_that_is_cancelled_stays_cancelled_though_the_engine_has_died() -> None:
    paused = asyncio.Event()

    class Dying(ScriptedEngine):
        async def pause_scheduler_async(self, *, mode: str, clear_cache: bool) -> None:
            paused.set()
            await asyncio.Event().wait()

        async def resume_generation(self) -> None:
            raise RuntimeError("the engine is dead")

    engine = Dying()
    one = loader(engine)
    await stage(one, engine, 4)
    commit = asyncio.create_task(one.commit(4))
    await paused.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
