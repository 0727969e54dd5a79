"""Figures of a deployment: memory of its GPUs, sequences at a time, cores of sandboxes.

Estimates for choosing settings, by the formulas that each line shows; engines and ranks measure
when they start. GB are 10^9 bytes, GiB 2^30.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from millrace_tools.capacity.engine_memory import (
    ENGINE_GIB,
    RELAY_GIB,
    RELAY_VERSIONS,
    WORKER_GIB,
    EngineMemory,
)
from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.model_shape import fetched_shape, shape_of
from millrace_tools.capacity.shared_gpu import SharedGpu
from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.orchestrator import RunConfig
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import TrainerConfig
from services.trainer.sizing.host import checkpoint_disk, host_parts
from services.trainer.sizing.rank_memory import (
    GIB,
    OVERHEAD_GIB,
    held_parts,
    rank_gib,
    step_parts,
)
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training
from services.weight_bus.config import WeightBusConfig


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """One model on one deployment.

    Attributes:
        shape: of the model.
        gpu_gib: memory of a GPU.
        relays: whether a relay on each node holds the weights for its engines.
        run: a run on it, if one is planned.
    """

    shape: ModelShape
    trainer: TrainerConfig
    rollout: RolloutServerConfig
    reward: RewardServiceConfig
    gpu_gib: float
    relays: bool = True
    run: RunConfig | None = None

    @property
    def parameters(self) -> int:
        """Of the model."""
        assert self.shape.parameters is not None
        return self.shape.parameters

    @property
    def training(self) -> Training:
        """What the ranks hold and do."""
        return training_of(self.shape, self.trainer, self.run, self.rollout)

    @property
    def rank_gib(self) -> float:
        """Memory that a rank's GPU must have."""
        return rank_gib(self.training)

    @property
    def engine(self) -> EngineMemory:
        """Memory of each engine."""
        return EngineMemory(
            shape=self.shape, rollout=self.rollout, gpu_gib=self.gpu_gib, relays=self.relays
        )

    @property
    def shared_gpu(self) -> SharedGpu | None:
        """A GPU in both turns; None where ranks and engines have GPUs of their own."""
        if self.trainer.placement == "separate":
            return None
        return SharedGpu(training=self.training, engine=self.engine)

    @property
    def most_gib(self) -> float:
        """The most that a GPU of a rank holds."""
        return self.shared_gpu.most_gib if self.shared_gpu else self.rank_gib

    @property
    def sequences(self) -> int:
        """Answers that are generated at a time, of all engines."""
        return self.rollout.replicas * self.rollout.max_num_seqs

    def figures(self) -> Iterator[tuple[str, str]]:
        """Name and value, for people."""
        rollout = self.rollout
        yield "model", f"{self.parameters / 1e9:.2f} G parameters"
        yield from self._rank_figures()
        if self.shared_gpu is not None:
            yield from self.shared_gpu.figures()
        yield from self._host_figures()
        engine = self.engine
        yield (
            "a rollout server",
            f"{rollout.tensor_parallel_size} x ({self.gpu_gib:g} GiB x "
            f"{rollout.gpu_memory_utilization:g} - {ENGINE_GIB:.1f}) - {engine.weights_gib:.1f} of "
            f"weights = {engine.kv_gib:.1f} GiB of KV cache = {engine.kv_tokens:,} tokens",
        )
        full = engine.kv_tokens // rollout.max_model_len
        mean = engine.kv_tokens // rollout.max_num_seqs
        yield (
            "sequences",
            f"{rollout.replicas} x {rollout.max_num_seqs} = {self.sequences:,} at a time; a server "
            f"holds all of its own up to {mean:,} tokens each, {full} of "
            f"{rollout.max_model_len:,}",
        )
        cores = self.reward.replicas * self.reward.slots
        yield "sandboxes", f"{self.reward.replicas} x {self.reward.slots} = {cores} cores"
        training = int(self.trainer.world_size * self.trainer.gpus_per_rank)
        serving = rollout.replicas * rollout.gpus
        if self.shared_gpu is None:
            told = f"{training} to train + {serving} to sample = {training + serving} of them"
        else:
            told = f"{serving}, to train and to sample in turn"
        yield "GPUs", told
        if (run := self.run) is None:
            return
        slots = run.schedule.groups_in_flight(run.batch_groups)
        answers = run.batch_groups * run.group_size
        yield (
            "admission slots",
            f"{slots} groups x {run.group_size} = {slots * run.group_size:,} answers in flight, "
            f"{slots * run.group_size / self.sequences:.2f} times the sequences at a time",
        )
        longest = answers * run.sampling.max_tokens
        at_once = self.trainer.row_groups * self.trainer.micro_batch_tokens
        passes = ceil(longest / run.algorithm.minibatches / at_once)
        yield (
            "a train step",
            f"{run.batch_groups} x {run.group_size} = {answers:,} answers, at most "
            f"{longest / 1e6:.1f} M sampled tokens, {passes} micro-batches a rank and update",
        )

    def _rank_figures(self) -> Iterator[tuple[str, str]]:
        moment, parts = step_parts(self.training)
        held = held_parts(self.training)
        yield f"a trainer GPU holds, over {self.trainer.shards}", _sum(held)
        tokens = self.training.tokens
        yield f"and needs most in a step of {tokens:,} tokens at the {moment}", _sum(parts)
        yield (
            "a trainer GPU",
            f"{sum(held.values()) / GIB:.1f} + {sum(parts.values()) / GIB:.1f} + "
            f"{OVERHEAD_GIB:.1f} of CUDA and NCCL = {self.rank_gib:.1f} of {self.gpu_gib:g} GiB",
        )

    def _host_figures(self) -> Iterator[tuple[str, str]]:
        engine, workers = self.engine, self.rollout.tensor_parallel_size
        yield "host memory of a rank", _sum(host := host_parts(self.training))
        each = sum(host.values()) / GIB
        if (together := self.trainer.ranks_per_node) is not None:
            yield (
                "host memory of a node's ranks",
                f"{together} x {each:.1f} = {together * each:.1f} GiB",
            )
        staged = f"{engine.staged_versions} x {engine.weights_gib:.1f} of staged weights + "
        yield (
            "host memory of an engine",
            f"{staged if engine.staged_versions else ''}{workers}"
            f" x {WORKER_GIB:.1f} of processes = {engine.host_gib:.1f} GiB",
        )
        if self.relays:
            yield (
                "host memory of a node's relay",
                f"{RELAY_VERSIONS} x {engine.weights_gib:.1f} of staged weights + {RELAY_GIB:.1f} "
                f"of the process = {engine.relay_gib:.1f} GiB",
            )
        if self.shared_gpu is not None and self.trainer.ranks_per_node is None:
            yield (
                "host memory of all on one node",
                f"{self.trainer.world_size} x {each:.1f} of ranks + {self.rollout.replicas} x "
                f"{engine.host_gib:.1f} of engines + {engine.relay_gib:.1f} of the relay = "
                f"{self.one_node_gib:.1f} GiB",
            )
        yield "disk of checkpoints", f"{checkpoint_disk(self.training) / 1e9:.0f} GB"

    @property
    def one_node_gib(self) -> float:
        """Host memory of a node that has all ranks and engines."""
        ranks = self.trainer.world_size * sum(host_parts(self.training).values()) / GIB
        return ranks + self.rollout.replicas * self.engine.host_gib + self.engine.relay_gib

    def problems(self) -> Iterator[str]:
        """A sentence for each part beside the ranks that will not fit by these estimates."""
        tokens = self.engine.kv_tokens
        if self.rollout.device == "cuda" and tokens < self.rollout.max_model_len:
            yield (
                f"rollout_server.args: the KV cache holds about {tokens:,} tokens, "
                f"less than max_model_len {self.rollout.max_model_len:,}: more "
                "tensor_parallel_size"
            )


def _sum(parts: Mapping[str, float]) -> str:
    if not parts:
        return "nothing"
    total = sum(parts.values()) / GIB
    return " + ".join(f"{size / GIB:.1f} of {use}" for use, size in parts.items()) + (
        f" = {total:.1f} GiB"
    )


def relays_of(configs: Mapping[str, Any]) -> bool:
    """Whether a deployment file has relays; one without a weight bus gets the default one."""
    bus: WeightBusConfig = configs.get("weight_bus") or WeightBusConfig()
    return bus.relays


def training_of(
    shape: ModelShape,
    trainer: TrainerConfig,
    run: RunConfig | None,
    rollout: RolloutServerConfig | None,
) -> Training:
    """What the ranks of a deployment train in a run, None for one of the defaults."""
    return Training(
        shape=shape,
        trainer=trainer,
        algorithm=AlgorithmConfig() if run is None else run.algorithm,
        longest_row=0 if rollout is None else rollout.max_model_len,
    )


def countable_shape(model: str, *, field: str) -> ModelShape:
    """The shape of a model, from its files, the table of known ones or the hub.

    Raises:
        InvalidInput: it is not on this machine and cannot be fetched, or its parameters cannot be
            counted.
    """
    shape = shape_of(model) or KNOWN_SHAPES.get(name_or_path(model)) or fetched_shape(model)
    if shape is None:
        fix = (
            "Its config.json is not on this machine and cannot be fetched: check the name and the "
            "network, or give a folder with it. Without it there are no figures."
        )
        raise InvalidInput(field, model, fix)
    if shape.parameters is None:
        fix = "Its experts are of a kind that cannot be counted, so there are no figures for it."
        raise InvalidInput(field, model, fix)
    return shape


def sizing_of(configs: Mapping[str, Any], run: RunConfig | None, gpu_gib: float) -> Sizing:
    """Of the services of a deployment file.

    Raises:
        InvalidInput: the file leaves one of them out or trains on CPUs, or its model is not on
            this machine and cannot be fetched, or has experts.
    """
    for name in ("trainer", "rollout_server", "reward_service"):
        if name not in configs:
            fix = "There are figures only for a file with trainer, rollout_server, reward_service."
            raise InvalidInput("--figures", name, fix)
    trainer = configs["trainer"]
    if trainer.device != "cuda":
        raise InvalidInput("--figures", trainer.device, "They are about GPUs: leave it out.")
    shape = countable_shape(trainer.model, field="trainer.args.model")
    return Sizing(
        shape=shape,
        trainer=trainer,
        rollout=configs["rollout_server"],
        reward=configs["reward_service"],
        gpu_gib=gpu_gib,
        relays=relays_of(configs),
        run=run,
    )
