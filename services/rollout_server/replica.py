"""One rollout server: an engine, its HTTP server and its membership of the weight bus."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from services.observability.log import Log
from services.protocol.errors import NotReady, portable_errors
from services.protocol.placement import Node
from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.replica_control import Hold
from services.protocol.weights.weight_bus import WeightBus
from services.protocol.weights.weights import WeightManifest
from services.retry import retrying
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.control.bus_member import BusMember
from services.rollout_server.control.replica_control import EngineControl
from services.rollout_server.control.start_up import StartPhase, StartUp
from services.rollout_server.engine.adapter_requests import AdapterRequests
from services.rollout_server.engine.engine_arguments import server_arguments
from services.rollout_server.engine.vllm_patches.engine_fork import fork_engine_processes
from services.rollout_server.engine.vllm_patches.version_spans import put_spans_on_every_output
from services.rollout_server.http.http_server import HttpServer
from services.rollout_server.quantisation import check_quantisation
from services.rollout_server.weights.canary import CanaryProver
from services.rollout_server.weights.engine_loader import EngineLoader
from services.rollout_server.weights.own_model import OwnModel
from services.shared_devices import SharedDevices
from services.side_by_side import cancel
from services.transport.base_digest import base_digest
from services.transport.network_interfaces import network_interfaces
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import memory_domain

_WATCH_S = 0.1
_DEVICE_LOOK_S = 60.0
_END_TIMEOUT_S = 10.0
_ANY_HOST = ("0.0.0.0", "::")

log = Log("rollout_server")


class RolloutReplica:
    """Starts, watches and stops the parts of one rollout server.

    Attributes:
        replica_id: name in the bus's member table.
        address: `http://host:port` of vLLM's OpenAI-compatible server.

    Args:
        on_end: called when a part ended by itself, after the others have been stopped.
        began_at: `time.monotonic()` when the imports began; None: now.
    """

    def __init__(
        self,
        config: RolloutServerConfig,
        *,
        replica_id: str,
        node: Node,
        bus: WeightBus,
        on_end: Callable[[], None],
        began_at: float | None = None,
    ) -> None:
        self._devices: SharedDevices | None = None
        self._start_up = StartUp(replica_id, began_at)
        self._start_up.reached(StartPhase.IMPORTS)
        self.replica_id = replica_id
        self._on_end = on_end
        self._watch_task: asyncio.Task[None] | None = None
        self._config = config
        self._node = node
        self._bus = bus
        self._engine: AsyncLLM | None = None
        self._member: BusMember | None = None
        self._loader: EngineLoader | None = None
        self._longest_commit_s = 0.0
        self._quantised = False
        self._server = HttpServer(config.host or node.ip)
        reachable = node.ip if config.host in _ANY_HOST else config.host or node.ip
        self.address = f"http://{reachable}:{self._server.port}"

    async def start(
        self, stat_loggers: list[Any] | None = None, devices: SharedDevices | None = None
    ) -> None:
        """Start engine, server and membership, in this order.

        The engine is started on the calling thread, which blocks the event loop: the
        engine's process dies with the thread that started it, and this one lives longest.

        Args:
            stat_loggers: vLLM's, beside its own.
            devices: those that the engine shares with ranks of the trainer; None: it shares none.

        Raises:
            InvalidInput: `engine_args` holds what vLLM does not know, or the engine would be
                quantised so that no new weights can be loaded.
            Exception: from vLLM; what had been started is stopped.
        """
        await self._take(devices)
        put_spans_on_every_output()
        arguments = server_arguments(self._config)
        try:
            usage = UsageContext.OPENAI_API_SERVER
            engine_config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(usage)
            model = engine_config.model_config
            check_quantisation(self._config, model.hf_config.to_dict())
            self._quantised = model.quantization is not None
            self._start_up.reached(StartPhase.ENGINE_CONFIG)
            if self._config.device == "cpu":
                fork_engine_processes()
            self._engine = AsyncLLM.from_vllm_config(
                vllm_config=engine_config,
                usage_context=usage,
                stat_loggers=stat_loggers,
            )
            self._start_up.reached(StartPhase.ENGINE)
            await self._server.start(self._engine, arguments)
            self._start_up.reached(StartPhase.HTTP_APP)
        except BaseException:
            await self.stop()
            raise
        own_model = OwnModel(dtype=self._config.dtype, vocabulary=model.get_vocab_size())
        loader = await self._loader_of(self._engine, own_model)
        self._longest_commit_s = loader.longest_commit_s
        prover = CanaryProver(self._engine, timeout_s=self._config.canary_timeout_s)
        control = EngineControl(self._engine, loader, self._config, devices=self._devices)
        self._loader = loader
        self._member = BusMember(
            self._bus, loader, prover, control, self._hello, reached=self._start_up.reached
        )
        self._member.start()
        self._watch_task = asyncio.create_task(self._watch(), name="watch")
        log.info("rollout server up", replica=self.replica_id, address=self.address)

    async def _take(self, devices: SharedDevices | None) -> None:
        """Wait for the end of the trainer's turn, however long a train step takes."""
        if devices is None:
            return

        def waits(busy: NotReady, _: float) -> None:
            log.info("rollout server waits", replica=self.replica_id, why=str(busy))

        await retrying(lambda: devices.take(_DEVICE_LOOK_S), pauses=[0.0], failed=waits)
        self._devices = devices

    async def _loader_of(self, engine: AsyncLLM, own_model: OwnModel) -> EngineLoader:
        config = self._config
        receiver = VersionReceiver(
            self._node.ip,
            keeps_copy=config.keep_copy,
            device=torch.device("cuda", 0) if config.device == "cuda" else None,
        )
        return EngineLoader(
            engine,
            receiver,
            adapter=await self._adapted(engine),
            in_flight=config.in_flight,
            commit_timeout_s=config.commit_timeout_s,
            own_model=own_model,
        )

    async def _adapted(self, engine: AsyncLLM) -> AdapterRequests | None:
        """Have every request answered with the adapter, where one is to come."""
        if self._config.lora_rank is None:
            return None
        base = await asyncio.to_thread(base_digest, self._config.model)
        return AdapterRequests(engine, name=self._config.served_model_name, base=base)

    @property
    def wanted_replicas(self) -> int | None:
        """How many rollout servers a run has work for; None where it is not known."""
        return self._member.wanted_replicas if self._member is not None else None

    async def check_health(self) -> None:
        """Answer if engine, server and membership all run.

        Raises:
            RuntimeError: server or membership ended, or the engine's process.
        """
        if self._engine is None or self._member is None:
            raise RuntimeError("the rollout server is not started")
        with portable_errors():
            await self._engine.check_health()
        self._member.check()
        if not self._server.running:
            raise RuntimeError("the HTTP server ended")

    async def stop(self) -> None:
        """Leave the bus, close the server, end the engine's processes."""
        watch, self._watch_task = self._watch_task, None
        if watch is not asyncio.current_task():
            await cancel(watch)
        if self._member is not None:
            await self._member.stop()
        await self._server.stop()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown)
            self._engine = None
        if self._devices is not None:
            self._devices.release()

    async def _watch(self) -> None:
        """Give up the lease as soon as a part has ended, without waiting to be asked."""
        while True:
            try:
                await self.check_health()
            # Edge of the loop: a part ended, and what happens now is the same for all.
            except Exception:
                log.exception("rollout server ends", replica=self.replica_id)
                try:
                    async with asyncio.timeout(_END_TIMEOUT_S):
                        await self.stop()
                finally:
                    self._on_end()
                return
            await asyncio.sleep(_WATCH_S)

    def _hello(self, committed: WeightManifest | None, copy: WeightManifest | None) -> ReplicaHello:
        return ReplicaHello(
            replica_id=self.replica_id,
            address=self.address,
            committed_version=committed.version if committed is not None else None,
            model=self._config.served_model_name,
            aliases=self._config.served_model_aliases,
            max_model_len=self._config.max_model_len,
            pid=os.getpid(),
            commit_timeout_s=self._longest_commit_s,
            keeps_copy=self._config.keep_copy,
            copy=copy,
            memory_domain=memory_domain(),
            node_id=self._node.ray_id,
            has_gpu=self._config.device == "cuda",
            quantised=self._quantised,
            deterministic=self._config.determinism,
            held=self._loader.held if self._loader is not None else Hold.NONE,
            devices=self._devices.names if self._devices is not None else (),
            interfaces=network_interfaces(),
        )
