"""Trainer and rollout servers of a file for GPUs, placed as there and run on CPUs.

Applications of the same names, deployments and resources: Ray gives out GPUs that nodes declare and
do not have. What runs on them is the example's model: real trainer ranks on CPUs, and, where there
are few, real engines; where there are many, an engine's member of the weight bus without an engine,
which receives every version for real.
"""

import asyncio
import os
from typing import Any

import ray
from ray import serve

from benchmarks.weight_fanout.processes import Replica
from millrace_tools.deploy.wiring import arguments_of
from services.peers import bus_peer
from services.protocol.weights.hello import ReplicaHello
from services.rollout_server import app as rollout_server
from services.rollout_server.config import RolloutServerConfig
from services.trainer import app as trainer
from services.trainer.config import TrainerConfig
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import Mappings, memory_domain

_HERE = "tests.operations.on_declared_gpus"
_LONGEST = 256
"""Tokens that the example's model takes."""


def on_cpus(content: Any, model: str, *, engines: bool) -> Any:
    """The content of a deployment file for GPUs, changed so that it starts here.

    Args:
        content: is changed.
        model: folder of the example's model.
        engines: real ones, and members of the weight bus without an engine else.
    """
    builders = {"trainer": "trainer", "rollout_server": "engines"}
    if not engines:
        builders = {"trainer": "trainer_without_proofs", "rollout_server": "members"}
    for application in content["applications"]:
        if builder := builders.get(application["name"]):
            application["import_path"] = f"{_HERE}:build_{builder}"
            application["args"]["model"] = model
    arguments = arguments_of(content)
    arguments["reward_service"]["slots"] = 1  # a process each; `num_cpus` are reserved as ever
    arguments["rollout_server"]["max_model_len"] = _LONGEST
    return content


def build_trainer(config: TrainerConfig) -> serve.Application:
    """The trainer: GPUs from Ray, tensors on the CPU."""
    small = {
        "device": "cpu",
        "dtype": "float32",
        "activation_checkpointing": False,
        "micro_batch_tokens": 8192,
        "context_parallel": 1,
        "offload": "none",
        "lora": None,
    }
    return trainer.build(config.model_copy(update=small))


def build_trainer_without_proofs(config: TrainerConfig) -> serve.Application:
    """The trainer, where nobody could score a canary."""
    return build_trainer(config.model_copy(update={"canary_sequences": 0}))


def build_engines(config: RolloutServerConfig) -> serve.Application:
    """Rollout servers: GPUs from Ray, engines on the CPU."""
    small = {
        "device": "cpu",
        "dtype": "float32",
        "tensor_parallel_size": 1,
        "enforce_eager": True,
        "kv_cache_gb": 0.25,
        "max_num_seqs": 32,
        "lora_rank": None,
    }
    deployment: Any = rollout_server.build(config)._bound_deployment
    return deployment.bind(config.model_copy(update=small))


def build_members(config: RolloutServerConfig) -> serve.Application:
    """Rollout servers: GPUs from Ray, and no engines."""
    deployment: Any = serve.deployment(
        Member,
        name="rollout_server",
        **rollout_server.scaling(config),
        **rollout_server.resources(config),
    )
    return deployment.bind(config)


class Member(Replica):
    """A replica that is a member of the weight bus and has no engine."""

    async def __init__(self, config: RolloutServerConfig) -> None:  # type: ignore[misc]
        self._config = config
        self._bus, self._id = bus_peer(), serve.get_replica_context().replica_id.unique_id
        self._address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._receiver = VersionReceiver(self._address)
        self._mappings = Mappings()
        self._work: set[asyncio.Task[Any]] = set()
        self._following = asyncio.create_task(self.run())

    async def check_health(self) -> None:
        """Answer while the bus is followed.

        Raises:
            RuntimeError: it is not.
        """
        if self._following.done():
            raise RuntimeError("the bus is followed no more") from self._following.exception()

    def _hello(self) -> ReplicaHello:
        context = ray.get_runtime_context()
        return ReplicaHello(
            replica_id=self._id,
            address=f"http://{self._address}:1",
            committed_version=None,
            model=self._config.served_model_name,
            max_model_len=self._config.max_model_len,
            pid=os.getpid(),
            commit_timeout_s=self._config.commit_timeout_s,
            memory_domain=memory_domain(),
            node_id=context.get_node_id(),
        )
