"""Configuration of the rollout server."""

from typing import Any, Literal

from pydantic import Field, model_validator

from services.observability.tracing import TracingConfig
from services.protocol.placement import Placement
from services.protocol.strict import StrictModel


class RolloutServerConfig(StrictModel):
    """One application of equal replicas, each with a vLLM engine.

    Attributes:
        model: folder with `config.json` and the tokenizer, or `hf://owner/name`. Its weights are
            read only with `lora_rank`; otherwise the weight bus delivers them.
        served_model_name: name by which clients ask for it, and by which answers name it.
        served_model_aliases: more names by which they may ask.
        replicas: engines.
        max_replicas: engines start while a run's trainer starves for rollouts, up to so many,
            and end while whole batches wait for it, down to `replicas`. None: always `replicas`.
        device: "cpu" or "cuda".
        dtype: type of parameters and activations in the engine.
        max_model_len: longest prompt plus response, tokens.
        max_num_seqs: sequences decoded together.
        kv_cache_gb: KV cache per replica on CPU, GiB; on CUDA `gpu_memory_utilization`
            decides.
        gpu_memory_utilization: share of a GPU's memory that the engine takes.
        tensor_parallel_size: workers (and on CUDA, GPUs) per engine.
        placement: `shared`: the engine sleeps while a rank of the trainer uses its GPU
            (docs/one-gpu.md); `trainer.placement` must say the same.
        kept_on_gpu: what stays on a shared GPU while the trainer has it. `none`: neither weights
            nor KV cache; the weights come back from the node's relay.
        enforce_eager: no compilation and no CUDA graphs; starts faster.
        seed: engine's sampling seed.
        determinism: an answer to a request with a seed does not depend on what is computed beside
            or before it. On CPU the engine computes one sequence at a time, in one thread, on CUDA
            with vLLM's batch-invariant kernels; no prefix caching (docs/training.md, "Runs that
            repeat").
        in_flight: what a commit does to requests that are being generated: "keep" freezes
            them and recomputes their KV cache under the new weights, "keep_stale" keeps
            the KV cache (and turns prefix caching off, so that no new request meets it),
            "drain" lets them finish first, "abort" ends them (the router goes on with them
            under the new weights).
        lora_rank: serve the model's own weights, read from its folder, with a LoRA adapter of
            at most this rank, which the weight bus delivers (`trainer.lora.push: adapter`).
            None: the bus delivers whole models.
        keep_copy: keep the served version's bytes in host memory, once for each replica, so that
            changes can be sent instead of everything (`weight_bus.delta_anchor_every`) and
            another replica can get them from this one when no trainer is there. A replica does so
            only if it receives by itself (`weight_bus.relays: false`): a relay keeps a copy anyway.
        commit_timeout_s: deadline of each step of a commit, seconds; with "drain" the
            longest request must fit.
        canary_timeout_s: longest that the proof of a delivery waits for its turn among
            other requests.
        host: address to listen on; "" is the node's own, "0.0.0.0" all of them.
        engine_args: further vLLM engine or server arguments by vLLM's names, such as
            `quantization` (docs/weights.md).
        tracing: a collector for spans, None for none (docs/tracing.md).
        num_cpus: CPUs that Ray reserves per replica.
        node_resource: custom Ray resource that a node must have for replicas to be put there.
    """

    model: str
    served_model_name: str = "policy"
    served_model_aliases: tuple[str, ...] = ()
    replicas: int = Field(default=1, ge=1)
    max_replicas: int | None = Field(default=None, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_model_len: int = Field(default=2048, ge=16)
    max_num_seqs: int = Field(default=64, ge=1)
    kv_cache_gb: float = Field(default=0.5, gt=0)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    placement: Placement = "separate"
    kept_on_gpu: Literal["none", "weights"] = "none"
    enforce_eager: bool = True
    seed: int = 0
    determinism: bool = False
    in_flight: Literal["keep", "keep_stale", "drain", "abort"] = "keep"
    lora_rank: int | None = Field(default=None, ge=1, le=512)
    keep_copy: bool = False
    commit_timeout_s: float = Field(default=60.0, gt=0)
    canary_timeout_s: float = Field(default=60.0, gt=0)
    host: str = ""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    tracing: TracingConfig | None = None
    num_cpus: float = Field(default=0.1, ge=0)
    node_resource: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "RolloutServerConfig":
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas: {self.max_replicas} is less than replicas: {self.replicas}, the "
                "fewest; give at least as many"
            )
        return self

    @property
    def most_replicas(self) -> int:
        """Engines at a time."""
        return self.max_replicas or self.replicas

    @property
    def gpus(self) -> int:
        """GPUs per replica."""
        return self.tensor_parallel_size if self.device == "cuda" else 0
