"""Figures of a deployment: memory of its GPUs, sequences at a time, cores of sandboxes.

Estimates for choosing settings, by the formulas that each line shows; engines and ranks measure
when they start. GB are 10^9 bytes, GiB 2^30.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.capacity.model_shape import ModelShape, fetched_shape, shape_of
from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.protocol.run.orchestrator import RunConfig
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import TrainerConfig

GIB = 2**30
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
STATE_BYTES = 16
"""Of one trained parameter: float32 weight, gradient and AdamW's two moments."""
ENGINE_GIB = 4.0
"""Memory that vLLM needs of a GPU beside weights and KV cache: activations, CUDA graphs, NCCL."""
RANK_GIB = 4.0
"""Memory that a rank needs of a GPU for CUDA's context, NCCL and fragmentation."""


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """One model on one deployment.

    Attributes:
        shape: of the model.
        gpu_gib: memory of a GPU.
        run: a run on it, if one is planned.
    """

    shape: ModelShape
    trainer: TrainerConfig
    rollout: RolloutServerConfig
    reward: RewardServiceConfig
    gpu_gib: float
    run: RunConfig | None = None

    @property
    def parameters(self) -> int:
        """Of the model, which is a dense one."""
        assert self.shape.parameters is not None
        return self.shape.parameters

    @property
    def rank_parts(self) -> dict[str, float]:
        """GiB that a rank needs of its GPU, by use.

        Gathered layers are those that exist whole during a pass: the layer that computes, the one
        that is fetched meanwhile, embedding and output layer. With checkpointing the activations
        of a micro-batch are the inputs of all layers and the inside of one, else the inside of
        all. Logits have a gradient.
        """
        shape, trainer = self.shape, self.trainer
        itemsize = ITEMSIZE[trainer.dtype]
        state, held = STATE_BYTES * self.parameters, "parameters, gradients and moments"
        if trainer.lora is not None:
            adapter = shape.adapter_parameters(trainer.lora.rank)
            state, held = itemsize * self.parameters + STATE_BYTES * adapter, "model and adapter"
        ends = (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
        heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        inside = 8 * shape.hidden + 2 * heads + 4 * shape.intermediate
        values = shape.layers * inside
        if trainer.activation_checkpointing:
            values = shape.layers * shape.hidden + inside
        return {
            f"{held} over {trainer.shards}": state / trainer.shards / GIB,
            "gathered layers": (2 * shape.layer_parameters + ends) * itemsize / GIB,
            "activations": trainer.micro_batch_tokens * values * itemsize / GIB,
            "logits": 2 * trainer.logits_mb / 1024,
            "CUDA and NCCL": RANK_GIB,
        }

    @property
    def rank_gib(self) -> float:
        """Memory that a rank's GPU must have."""
        return sum(self.rank_parts.values())

    @property
    def weights_gib(self) -> float:
        """The model in an engine, over its GPUs."""
        return self.parameters * ITEMSIZE[self.rollout.dtype] / GIB

    @property
    def kv_gib(self) -> float:
        """Memory for the KV cache of an engine, over its GPUs."""
        gpus = self.rollout.tensor_parallel_size
        taken = self.gpu_gib * self.rollout.gpu_memory_utilization
        return gpus * (taken - ENGINE_GIB) - self.weights_gib

    @property
    def kv_tokens(self) -> int:
        """Tokens in the KV cache of an engine."""
        each = self.shape.kv_bytes(ITEMSIZE[self.rollout.dtype])
        return max(0, int(self.kv_gib * GIB / each))

    @property
    def sequences(self) -> int:
        """Answers that are generated at a time, of all engines."""
        return self.rollout.replicas * self.rollout.max_num_seqs

    def figures(self) -> Iterator[tuple[str, str]]:
        """Name and value, for people."""
        rollout = self.rollout
        yield "model", f"{self.parameters / 1e9:.2f} G parameters"
        yield (
            "a trainer GPU",
            " + ".join(f"{gib:.1f} of {use}" for use, gib in self.rank_parts.items())
            + f" = {self.rank_gib:.1f} of {self.gpu_gib:g} GiB",
        )
        yield (
            "a rollout server",
            f"{rollout.tensor_parallel_size} x ({self.gpu_gib:g} GiB x "
            f"{rollout.gpu_memory_utilization:g} - {ENGINE_GIB:.1f}) - {self.weights_gib:.1f} of "
            f"weights = {self.kv_gib:.1f} GiB of KV cache = {self.kv_tokens:,} tokens",
        )
        full = self.kv_tokens // rollout.max_model_len
        mean = self.kv_tokens // rollout.max_num_seqs
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
        yield "GPUs", f"{training} to train + {serving} to sample = {training + serving} of them"
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
        ranks = self.trainer.world_size
        passes = ceil(longest / run.algorithm.minibatches / ranks / self.trainer.micro_batch_tokens)
        yield (
            "a train step",
            f"{run.batch_groups} x {run.group_size} = {answers:,} answers, at most "
            f"{longest / 1e6:.1f} M sampled tokens, {passes} micro-batches a rank and update",
        )

    def problems(self) -> Iterator[str]:
        """A sentence for each part that will not fit by these estimates."""
        if self.trainer.device == "cuda" and self.rank_gib > self.gpu_gib:
            yield (
                f"trainer.args: a rank needs about {self.rank_gib:.1f} GiB of its GPU's "
                f"{self.gpu_gib:g}: more ranks, or a smaller micro_batch_tokens"
            )
        if self.rollout.device == "cuda" and self.kv_tokens < self.rollout.max_model_len:
            yield (
                f"rollout_server.args: the KV cache holds about {self.kv_tokens:,} tokens, "
                f"less than max_model_len {self.rollout.max_model_len:,}: more "
                "tensor_parallel_size"
            )


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
    shape = shape_of(trainer.model) or KNOWN_SHAPES.get(name_or_path(trainer.model))
    shape = shape or fetched_shape(trainer.model)
    if shape is None:
        fix = (
            "Its config.json is not on this machine and cannot be fetched: check the name and the "
            "network, or leave out --figures."
        )
        raise InvalidInput("trainer.args.model", trainer.model, fix)
    if shape.parameters is None:
        fix = "There are figures only for dense models, and it has experts: leave out --figures."
        raise InvalidInput("trainer.args.model", trainer.model, fix)
    return Sizing(
        shape=shape,
        trainer=trainer,
        rollout=configs["rollout_server"],
        reward=configs["reward_service"],
        gpu_gib=gpu_gib,
        run=run,
    )
