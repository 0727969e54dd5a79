"""Orders of the bus carried out on one engine: stage, commit, drop."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from services.observability.log import Log
from services.protocol.weights.place import Place
from services.protocol.weights.replica_control import Hold
from services.protocol.weights.weight_bus import StageWeights
from services.protocol.weights.weights import WeightManifest, first_difference
from services.rollout_server.engine.vllm_patches.engine_pause import pause
from services.rollout_server.weights.own_model import OwnModel
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import HeldBuffer
from services.transport.staged_version import StageFailed

if TYPE_CHECKING:  # heavy, and what is here is tested without it
    from vllm.v1.engine.async_llm import AsyncLLM

    from services.rollout_server.engine.adapter_requests import AdapterRequests

_RPC_TIMEOUT_S = 30.0
_COMMIT_STEPS = 3  # pause, load, resume

log = Log("rollout_server")


class OtherModel(StageFailed):
    """The version is not of the model that is served; not a byte of it was received."""


class NothingStaged(RuntimeError):
    """A commit was ordered of a version that is not there."""


class Asleep(RuntimeError):
    """A commit was ordered of an engine whose memory has been freed."""


@dataclass(frozen=True, kw_only=True)
class _Staged:
    """A version that can be loaded.

    Attributes:
        manifest: of the version.
        held: its memory, over which nobody writes meanwhile.
        place: where workers find it.
    """

    manifest: WeightManifest
    held: HeldBuffer
    place: Place


class EngineLoader:
    """The versions of one engine: at most one staged, at most one committed.

    Staging asks nothing of the engine, whose loop would take the call between two steps.

    Attributes:
        receiver: where versions arrive.
        committed: the version served, None before the first commit, after a commit that
            failed half-way, and when what is served is not what the trainer sent.
        torn: a commit failed half-way, or the weights were dropped; generation stands still
            until a commit succeeds.
        pageable: CUDA had not registered the memory of the version loaded last, so that its load
            was slow; where CUDA refuses, the workers have logged why.
        held: why the engine may not work. A commit resumes no paused engine and loads into none
            that sleeps or whose device is lent.
        wake: called instead of resuming, once, after the next commit: what an engine that
            lost its weights in its sleep does last.
    """

    def __init__(
        self,
        engine: "AsyncLLM",
        receiver: VersionReceiver,
        *,
        in_flight: str,
        commit_timeout_s: float,
        adapter: "AdapterRequests | None" = None,
        own_model: OwnModel | None = None,
    ) -> None:
        self._engine, self.receiver, self._adapter = engine, receiver, adapter
        self._own_model = own_model
        self._mode = {"drain": "wait", "abort": "abort"}.get(in_flight, "keep")
        self._clear_cache = in_flight != "keep_stale"
        self._timeout_s = commit_timeout_s
        self._staged: _Staged | None = None
        self._loaded: WeightManifest | None = None  # the last one, also after it was lost
        self._served: int | None = None  # by the workers, also after it was lost
        self._received = False  # by this replica and not by its node's relay
        self.committed: WeightManifest | None = None
        self.torn = self.pageable = False
        self.held = Hold.NONE
        self.wake: Callable[[], Awaitable[object]] | None = None

    @property
    def committed_version(self) -> int | None:
        """Number of the version served, None while none is whole."""
        return self.committed.version if self.committed is not None else None

    @property
    def longest_commit_s(self) -> float:
        """Seconds after which `commit` has ended, well or badly."""
        # Between load and resume the workers may be asked whether they are torn.
        return _COMMIT_STEPS * self._timeout_s + _RPC_TIMEOUT_S

    async def stage(self, order: StageWeights) -> float:
        """Have a version ready in the background of generation: receive it, unless the relay of
        this node holds it, and hold its memory.

        Returns:
            Seconds from start to the last checked byte. Every link operation has its own
            deadline, so this ends.

        Raises:
            OtherModel: names, shapes or element types are not those of what was loaded, or
                an adapter is not for the frozen model that is here.
            StageFailed: a link broke, a deadline passed, bytes were not the manifest's, or the
                memory of the relay is gone.
        """
        self._refuse_other_model(order.manifest)
        self._staged = None
        seconds, place = 0.0, order.place
        self._received = place is None
        if place is None:
            seconds = await self.receiver.receive(order)
            place = self.receiver.staged_at()
        try:
            held = HeldBuffer(place)
        except (OSError, ValueError) as error:
            raise StageFailed(f"shared memory: {error}") from error
        # Of this process: workers find it there whatever becomes of the relay.
        own = held.place(place.offset)
        self._staged = _Staged(manifest=order.manifest, held=held, place=own)
        return seconds

    def _refuse_other_model(self, manifest: WeightManifest) -> None:
        if (manifest.adapter is None) != (self._adapter is None):
            came, taken = (
                ("an adapter", "whole models") if manifest.adapter else ("a model", "adapters")
            )
            fix = "trainer.lora.push: adapter goes with rollout_server.lora_rank, and only with it"
            raise OtherModel(f"tensors: {came} came where {taken} are served; {fix}")
        if manifest.adapter and self._adapter and manifest.adapter.base != self._adapter.base:
            raise OtherModel(
                f"base: the adapter is for weights with digest {manifest.adapter.base}, but those "
                f"in the model's folder here have {self._adapter.base}; copy the trainer's"
            )
        difference = self._own_model.difference(manifest) if self._own_model is not None else None
        if difference is None and self._loaded is not None:
            difference = first_difference(manifest, self._loaded)
        if difference is not None:
            raise OtherModel(f"tensors: {difference}")

    async def commit(self, version: int) -> float:
        """Make the staged version the served one; nothing is sampled in between.

        Returns:
            Seconds for which generation stood still.

        Raises:
            NothingStaged: the version is not complete here; generation was not stopped.
            Asleep: the engine sleeps, or its device is lent.
            TimeoutError: a step missed its deadline.
            Exception: from the engine. Unless `torn`, the served version is as
                before and generation goes on.
        """
        staged = self._staged
        if staged is None and self.committed_version == version:
            return 0.0  # the order was delivered again
        if staged is None or staged.manifest.version != version:
            raise NothingStaged(f"version {version} is not staged")
        if self.held in (Hold.ASLEEP, Hold.LENT):
            raise Asleep(f"the engine is {self.held}; it must wake up first")
        started = time.monotonic()
        try:
            if self.held is Hold.NONE and self.wake is None:  # else it stands still already
                await self._step(
                    pause(self._engine, mode=self._mode, clear_cache=self._clear_cache)
                )
            before, self.committed = self.committed, None
            # Until the workers say otherwise: a cancelled or late load may have begun.
            was_torn, self.torn = self.torn, True
            try:
                await self._step(self._load(staged))
            except Exception:
                self.torn = was_torn or await self._workers_torn()
                self.committed = None if self.torn else before
                raise
            self.torn, self.committed, self._staged = False, staged.manifest, None
            self._loaded, self._served = staged.manifest, version
            if self._received:
                self.receiver.keep()
            else:
                self.receiver.forget()
            if self._adapter is not None:
                self._adapter.there = True
        except asyncio.CancelledError:
            # The error of an engine that has died would take the cancellation's place.
            with contextlib.suppress(Exception):
                await self._go_on()
            raise
        except Exception:
            await self._go_on()
            raise
        await self._go_on()
        return time.monotonic() - started

    async def _go_on(self) -> None:
        if not self.torn:
            await self._unpause()

    async def _load(self, staged: _Staged) -> None:
        arguments = tuple(map(msgspec.msgpack.encode, (staged.manifest, staged.place)))
        self.pageable = any(await self._engine.collective_rpc("open_update", args=arguments))
        version = str(staged.manifest.version)
        if staged.manifest.adapter is None:
            await self._engine.finish_weight_update(version)
            return
        await self._engine.collective_rpc("finish_adapter")
        await self._engine.update_weight_version(version)

    async def read_back(self) -> str | None:
        """Have the workers read back, between two steps, the version that was loaded last.

        Returns:
            Which parameters are not what was sent; None: all are.

        Raises:
            TimeoutError: the engine did not come to it.
            Exception: from the engine.
        """
        return next((one for one in await self._rpc("read_back") if one is not None), None)

    def lose_weights(self) -> None:
        """The weights are gone: nothing is served until everything was sent again."""
        self.committed, self._staged, self.torn = None, None, True

    async def _unpause(self) -> None:
        if self.wake is not None:
            await self._step(self.wake())
            self.wake = None
        elif self.held is Hold.NONE:
            await self._step(self._engine.resume_generation())

    def distrust(self, version: int) -> None:
        """What is served as `version` is wrong: do not claim to hold it any more."""
        if self.committed_version == version:
            self.committed = None

    @property
    def copy(self) -> WeightManifest | None:
        """The version that is kept in host memory besides being served."""
        held = self.receiver.copy
        return held if held is not None and held.version == self.committed_version else None

    def drop(self, prefix: str) -> None:
        """Forget links whose prefix starts with `prefix`, and what was staged."""
        self.receiver.drop(prefix)
        self._staged = None

    async def digests(self) -> list[dict[str, Any]]:
        """Per worker: committed version, digest of its bytes, and whether it is torn."""
        return await self._rpc("weights_digest")

    async def _workers_torn(self) -> bool:
        """Whether any holds something else than was loaded last: a late load may have ended."""
        served = self._served
        try:
            return any(one["torn"] or one["version"] != served for one in await self.digests())
        # Workers that cannot answer are taken to be torn.
        except Exception:
            log.exception("workers do not say whether they are torn")
            return True

    async def _rpc(self, method: str, *args: Any) -> list[Any]:
        # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the
        # result, and a stage that was called off would go on to its links' deadline.
        async with asyncio.timeout(_RPC_TIMEOUT_S):
            return await self._engine.collective_rpc(method, args=args)

    async def _step(self, call: Awaitable[object]) -> None:
        async with asyncio.timeout(self._timeout_s):
            await call
