"""The trainer's configuration and the only place of its defaults."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.observability.tracing import TracingConfig
from services.protocol.placement import NODE_RESOURCE_SHARE, Placement
from services.protocol.strict import StrictModel

MIB = 1 << 20

Moments = Literal["float32", "8bit"]
GradientSync = Literal["every_micro_batch", "last_micro_batch"]


class LoraConfig(StrictModel):
    """Train a low-rank difference to a frozen model instead of the model.

    Attributes:
        rank: of every difference.
        alpha: the difference is scaled by alpha / rank.
        targets: names of the linear layers that get one, such as `q_proj`; `all`: every
            linear layer of the decoder layers.
        push: `merged` adds it to the weights that travel, so that engines need to know
            nothing of it; `adapter` sends only the difference, to rollout servers that have
            the model already (`rollout_server.lora_rank`).
    """

    rank: int = Field(ge=1, le=512)
    alpha: float = Field(gt=0)
    targets: Literal["all"] | tuple[str, ...] = Field(default="all", min_length=1)
    push: Literal["merged", "adapter"] = "merged"


class TrainerConfig(StrictModel):
    """How a group of FSDP2 ranks holds and updates one model.

    Attributes:
        model: folder of a Hugging Face checkpoint, or `hf://owner/name`.
        world_size: FSDP2 ranks; each is one Ray actor.
        model_copies: how many times the model is held (HSDP): each `world_size / model_copies`
            ranks in a row shard one copy, and only gradients pass between copies. Use it
            where links within a node are much faster than links between nodes.
        context_parallel: so many ranks in a row of one copy share each micro-batch, each with a
            slice of its tokens, so that a row can be longer than one rank's memory holds; needs
            packing, and a model whose attention heads it divides.
        device: where the ranks compute; `cpu` talks over Gloo, `cuda` over NCCL.
        dtype: of forward passes and of weights on the wire; master weights and
            gradients are always float32.
        seed: of parameters that the checkpoint lacks.
        lora: train a LoRA adapter and leave the model frozen, in `dtype`.
        logits_mb: MiB of float32 logits held at once. Micro-batches with more are scored in
            pieces, and each piece's logits computed again in the backward pass.
        float32_logits: with `dtype: bfloat16`, sum and keep the output layer's products in float32.
            Off: logits are rounded to bfloat16 before the softmax, as engines that do so score.
        moments: of AdamW. `8bit`: codes of 8 bits with a scale for each 256 of them, by torchao
            (`pip install 'millrace[8bit]'`): 2 bytes a trained parameter in place of 8; needs
            `offload: none`.
        activation_checkpointing: recompute decoder layers in the backward pass.
        activation_offload: keep the inputs of checkpointed layers in host memory until the
            backward pass; needs `activation_checkpointing`.
        offload: what waits in host memory. `optimizer`: AdamW's moments, which pass through the
            device in every update. `all`: parameters, gradients and moments, of the reference
            and the critic too; the CPU makes the update. On `device: cpu` all is there anyway.
        compile: compile decoder layers with torch.compile; needs a C++ compiler on the ranks'
            nodes, and takes a while at the first passes of a process.
        packing: lay rows end to end in one sequence, without padding; a token attends only to
            tokens of its own row. `auto` pads, and says why, where a model cannot do that; `on`
            refuses such a model; `off` always pads.
        shared_prefixes: if rows of a micro-batch begin with the same tokens, compute these tokens
            only once. `auto`: on `device: cpu`, where the model and `context_parallel: 1` allow it;
            on CUDA it has not run yet. `on` refuses a model that cannot do that; `off`: never.
        peak_tflops: dense bfloat16 TFLOP/s of one rank's device, of which `mfu` is a share; None:
            from a table of GPUs, and no `mfu` on the CPU or for a GPU that it lacks.
        micro_batch_tokens: most tokens of one forward pass, padding included; a longer
            trajectory gets a forward pass of its own. With `context_parallel` ranks share them.
        gradient_sync: when the ranks add up their gradients. `every_micro_batch`: after each
            backward pass, so that a rank keeps its own shard only. `last_micro_batch`: once an
            update, which sends less; until then every rank keeps the gradient of the whole
            model, 4 bytes of each trained parameter.
        bucket_mb: MiB of full tensors that travel to a replica in one piece.
        threads_per_rank: compute threads of a rank on the CPU.
        num_cpus: Ray CPUs of the Serve replica that leads the ranks.
        rank_num_cpus: Ray CPUs of each rank.
        gpus_per_rank: Ray GPUs of each rank; 0 with `placement: shared`, whose engines hold them.
        placement: `shared`: each rank computes on the GPU of an engine's worker, in turn with it
            (docs/one-gpu.md); `rollout_server.placement` must say the same.
        kept_on_gpu: of a rank's state, what stays on a shared GPU while the engine samples; the
            rest waits in host memory, or in a file where the ranks compute on CPUs.
        ranks_per_node: so many ranks in a row share a node, and all are placed at once or none;
            None: Ray places each by itself.
        node_resource: custom Ray resource that a node must have for ranks to be put there.
        canary_sequences: sequences of 32 tokens, sampled from the policy when a run starts and
            scored with every version, by which its delivery is proved; more find smaller faults,
            0 turns the proof off.
        start_timeout_s: longest that the ranks' processes up to the import of torch may take, and
            engines to free shared devices; loading the model is not part of it. Resources that no
            node has are asked for anew after so long, until one has them.
        progress_timeout_s: longest that a group of ranks may be without progress in a load, train
            step or checkpoint, however long that takes (docs/training.md, "Progress and hangs").
        bus_timeout_s: longest that a publish waits for the weight bus to be up.
        tracing: a collector for spans, None for none (docs/tracing.md).
        checkpoints_kept: newest complete checkpoints that a save leaves.
        allow_fault_injection: let every process of the Ray cluster corrupt what ranks send, as
            `millrace chaos` does to test that replicas refuse it.
        user_losses: whether a run file may name Python code, its `algorithm.loss`, which then
            runs in the ranks with their rights. Off: else every client that may start runs could
            execute any code.
    """

    model: str = Field(min_length=1)
    world_size: int = Field(default=2, ge=1, le=1024)
    model_copies: int = Field(default=1, ge=1, le=1024)
    context_parallel: int = Field(default=1, ge=1, le=1024)
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = Field(default=0, ge=0)
    lora: LoraConfig | None = None
    moments: Moments = "float32"
    activation_checkpointing: bool = False
    activation_offload: bool = False
    offload: Literal["none", "optimizer", "all"] = "none"
    compile: bool = False
    packing: Literal["auto", "on", "off"] = "auto"
    shared_prefixes: Literal["auto", "on", "off"] = "auto"
    peak_tflops: float | None = Field(default=None, gt=0)
    micro_batch_tokens: int = Field(default=8192, ge=16)
    gradient_sync: GradientSync = "every_micro_batch"
    logits_mb: float = Field(default=512.0, gt=0)
    float32_logits: bool = True
    bucket_mb: float = Field(default=64.0, gt=0, le=4096)
    threads_per_rank: int = Field(default=1, ge=1)
    num_cpus: float = Field(default=0.1, ge=0)
    rank_num_cpus: float = Field(default=0.1, ge=0)
    gpus_per_rank: float = Field(default=0.0, ge=0)
    placement: Placement = "separate"
    kept_on_gpu: Literal["none", "parameters", "all"] = "none"
    ranks_per_node: int | None = Field(default=None, ge=1)
    node_resource: str | None = Field(default=None, min_length=1)
    canary_sequences: int = Field(default=8, ge=0, le=1024)
    start_timeout_s: float = Field(default=180.0, gt=0)
    progress_timeout_s: float = Field(default=45.0, gt=0)
    bus_timeout_s: float = Field(default=120.0, gt=0)
    tracing: TracingConfig | None = None
    checkpoints_kept: int = Field(default=2, ge=1)
    allow_fault_injection: bool = False
    user_losses: bool = False

    @model_validator(mode="after")
    def _ranks_are_divided_equally(self) -> Self:
        for name in ("model_copies", "ranks_per_node"):
            count = getattr(self, name)
            if count and self.world_size % count:
                raise ValueError(
                    f"{name}: {self.world_size} ranks cannot be divided equally by {count}; give "
                    "a divisor of world_size"
                )
        if self.shards % self.context_parallel:
            raise ValueError(
                f"context_parallel: the {self.shards} ranks of a copy cannot be divided equally by "
                f"{self.context_parallel}; give a divisor of world_size / model_copies"
            )
        if self.context_parallel > 1 and self.packing == "off":
            raise ValueError(
                f"context_parallel: {self.context_parallel} ranks can share packed rows only; "
                "leave packing out, or give context_parallel 1"
            )
        if self.shared_prefixes == "on" and (self.packing == "off" or self.context_parallel > 1):
            raise ValueError(
                "shared_prefixes: on needs packed rows that no ranks share; leave it out, or leave "
                "out packing and context_parallel"
            )
        return self

    @model_validator(mode="after")
    def _only_checkpointed_layers_have_inputs_to_offload(self) -> Self:
        if self.activation_offload and not self.activation_checkpointing:
            raise ValueError(
                "activation_offload: only the inputs of checkpointed layers go to host memory; "
                "set activation_checkpointing: true, or leave activation_offload out"
            )
        return self

    @model_validator(mode="after")
    def _eight_bit_moments_stay_on_the_device(self) -> Self:
        if self.moments == "8bit" and self.offload != "none":
            raise ValueError(
                f"moments: 8bit stay where the ranks compute, and offload is {self.offload}; set "
                "offload: none, or moments: float32"
            )
        return self

    @property
    def rank_resources(self) -> dict[str, float]:
        """Custom Ray resources of each rank."""
        return {self.node_resource: NODE_RESOURCE_SHARE} if self.node_resource else {}

    @property
    def rank_bundles(self) -> tuple[dict[str, float], ...]:
        """Ray placement group bundles for all ranks, one node each: CPU, GPU, custom resources."""
        together = self.ranks_per_node or 1
        rank = {"CPU": self.rank_num_cpus, "GPU": self.gpus_per_rank} | self.rank_resources
        bundle = {name: together * amount for name, amount in rank.items() if amount}
        return (bundle,) * (self.world_size // together)

    @property
    def shards(self) -> int:
        """Ranks that hold one copy of the model. The first `shards` ranks hold the first copy
        and send it to replicas."""
        return self.world_size // self.model_copies

    @property
    def row_groups(self) -> int:
        """Groups of `context_parallel` ranks, among which the rows of a batch are divided."""
        return self.world_size // self.context_parallel

    @property
    def row_groups_leave_nodes(self) -> bool:
        """Whether ranks that share rows are on different nodes, which is slow."""
        return bool(self.ranks_per_node and self.ranks_per_node % self.context_parallel)

    @property
    def logits_bytes(self) -> int:
        """Bytes of logits held at once."""
        return int(self.logits_mb * MIB)

    @property
    def bucket_bytes(self) -> int:
        """Target size of a bucket in bytes."""
        return int(self.bucket_mb * MIB)
