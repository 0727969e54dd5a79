"""Settings with which a model fits given GPUs, chosen by the sizing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from millrace_tools.capacity.sizing import Sizing
from millrace_tools.sizes.hardware import Hardware
from services.protocol.model_source import name_or_path
from services.protocol.placement import Placement
from services.protocol.run.orchestrator import RunConfig
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.sizing.parked import KEPT
from services.trainer.sizing.shape import ModelShape

Example = Literal["gsm8k", "deepcoder"]
Offload = Literal["none", "optimizer", "all"]

LENGTHS: dict[str, tuple[tuple[int, int], ...]] = {
    "gsm8k": ((4096, 5120), (2048, 3072), (1024, 2048)),
    "deepcoder": ((24576, 32768), (12288, 16384), (6144, 8192)),
}
"""Longest answer, and prompt and answer together, in tokens; the best of each example first."""
_MICRO_BATCHES = (32768, 16384, 8192)
_SHARED_ROWS = (2, 4)
_ENGINE_SIZES = (1, 2, 4, 8)
_WHOLE_ANSWERS = 6
"""Sequences of full length that an engine's KV cache must hold,"""
_USUAL = 8
"""and of so many times as many of usual length it samples at a time."""
_MOST_SEQUENCES, _FEWEST_SEQUENCES = 256, 8
_FEWEST_GROUPS = 16


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be trained, and on what.

    Attributes:
        model: as deployment files name it.
        shape: of the model.
        run: the example's.
        lora: rank of an adapter; None: the whole model.
        offload: what may wait in host memory during a step; None: moments, if need be.
        lengths: longest answers, and prompts and answers together, in the order of preference.
    """

    model: str
    shape: ModelShape
    hardware: Hardware
    placement: Placement
    run: RunConfig
    lengths: tuple[tuple[int, int], ...]
    lora: int | None = None
    offload: Offload | None = None

    @property
    def served_name(self) -> str:
        """Name by which clients ask for the model."""
        return name_or_path(self.model).rstrip("/").rpartition("/")[2].lower()

    def __str__(self) -> str:
        adapter = "" if self.lora is None else " with an adapter"
        turns = ", ranks and engines in turn" if self.placement == "shared" else ""
        return f"{self.hardware}: {self.model.rpartition('/')[2]}{adapter}{turns}"


@dataclass(frozen=True, kw_only=True)
class Division:
    """GPUs of a node, divided between training and sampling.

    Attributes:
        ranks: GPUs that train.
        engines: number of rollout servers.
        engine_gpus: GPUs of each.
        shared: the same GPUs do both, in turn.
    """

    ranks: int
    engines: int
    engine_gpus: int
    shared: bool = False

    def __str__(self) -> str:
        each = "" if self.engine_gpus == 1 else f" x {self.engine_gpus}"
        engines = f"{self.engines}{each}"
        return engines if self.shared else f"{self.ranks} + {engines}"


def divisions(wish: Wish) -> Iterator[Division]:
    """Divisions of the GPUs: the smallest engines first, then those that leave the fewest GPUs
    unused, then the most even."""
    gpus, shared = wish.hardware.gpus, wish.placement == "shared"
    for size in _ENGINE_SIZES:
        if wish.shape.heads % size:
            continue
        if shared:
            if gpus >= size and gpus % size == 0:
                yield Division(ranks=gpus, engines=gpus // size, engine_gpus=size, shared=True)
            continue
        found = [
            Division(ranks=ranks, engines=(gpus - ranks) // size, engine_gpus=size)
            for ranks in range(1, gpus - size + 1)
        ]
        yield from sorted(
            found,
            key=lambda one: (
                gpus - one.ranks - one.engines * one.engine_gpus,
                abs(2 * one.ranks - gpus),
            ),
        )


def candidates(wish: Wish) -> Iterator[Sizing]:
    """Settings in the order of preference; not all of them fit."""
    offloads = ("none", "optimizer") if wish.offload is None else (wish.offload,)
    for lengths in wish.lengths:
        for offload in offloads:
            for division in divisions(wish):
                for passes in _passes(lengths[1], division.ranks, wish.shape.heads):
                    for push in _pushes(wish):
                        yield _sizing(wish, division, lengths, {"offload": offload, **passes}, push)


def chosen(wish: Wish) -> Sizing | None:
    """The first settings that fit, and the memory that they leave put to use; None: none fits."""
    fitting = (one for one in candidates(wish) if not problem(one, wish.hardware))
    found = next(fitting, None)
    return None if found is None else _with_run(_filled(found, wish.hardware), wish)


def first_fitting(wishes: list[Wish]) -> tuple[Wish, Sizing] | None:
    """The wish that allows the longest answers, of equals the first, and its settings."""
    for lengths in wishes[0].lengths:
        for wish in wishes:
            if (found := chosen(replace(wish, lengths=(lengths,)))) is not None:
                return wish, found
    return None


def problem(sizing: Sizing, hardware: Hardware) -> str:
    """Why settings do not fit; empty for those that do."""
    tokens, needed = sizing.engine.kv_tokens, sizing.most_gib
    usable = f"{hardware.usable_gib:.1f} that may be filled of {hardware.gpu_gib:g} GiB"
    if needed > hardware.usable_gib:
        return f"a GPU that trains needs {needed:.1f} GiB, more than the {usable}"
    length = sizing.rollout.max_model_len
    if tokens < _WHOLE_ANSWERS * length:
        fewest = f"{_WHOLE_ANSWERS} x {length:,}"
        return f"an engine's KV cache holds {tokens:,} tokens, fewer than {fewest}"
    if hardware.host_gib is not None and sizing.one_node_gib > hardware.host_gib:
        return (
            f"the node needs {sizing.one_node_gib:.1f} GiB of host memory, more than its "
            f"{hardware.host_gib:g}"
        )
    return ""


def _passes(longest: int, ranks: int, heads: int) -> Iterator[dict[str, Any]]:
    """Settings of a pass over the rows, the fastest first: rows that are whole on one rank, that
    ranks share, or whose inputs of layers wait in host memory."""
    for tokens in (*(one for one in _MICRO_BATCHES if one > longest), longest):
        yield {"micro_batch_tokens": tokens}
    for sharing in _SHARED_ROWS:
        if ranks % sharing == 0 and heads % sharing == 0:
            yield {
                "micro_batch_tokens": max(longest, _MICRO_BATCHES[0]),
                "context_parallel": sharing,
            }
    yield {"micro_batch_tokens": longest, "activation_offload": True}


def _pushes(wish: Wish) -> tuple[dict[str, Any], ...]:
    """How the weights travel: an adapter alone, while the engine keeps the model that it is for;
    merged where it cannot keep it."""
    if wish.lora is None:
        return ({},)
    lora = {"rank": wish.lora, "alpha": 2 * wish.lora}
    if wish.placement == "separate":
        return ({"lora": lora | {"push": "adapter"}},)
    adapter = {"lora": lora | {"push": "adapter"}, "kept": "weights"}
    return (adapter, {"lora": lora | {"push": "merged"}})


def _sizing(
    wish: Wish,
    division: Division,
    lengths: tuple[int, int],
    trained: dict[str, Any],
    pushed: dict[str, Any],
) -> Sizing:
    hardware, shared = wish.hardware, wish.placement == "shared"
    lora = LoraConfig.model_validate(pushed["lora"]) if "lora" in pushed else None
    cores = hardware.divided(ranks=division.ranks, engines=division.engines)
    trainer = TrainerConfig(
        model=wish.model,
        world_size=division.ranks,
        ranks_per_node=None if shared else division.ranks,
        placement=wish.placement,
        lora=lora,
        device="cuda",
        dtype="bfloat16",
        activation_checkpointing=True,
        rank_num_cpus=cores.rank,
        gpus_per_rank=0 if shared else 1,
        **trained,
    )
    rollout = RolloutServerConfig(
        model=wish.model,
        served_model_name=wish.served_name,
        replicas=division.engines,
        lora_rank=lora.rank if lora is not None and lora.push == "adapter" else None,
        placement=wish.placement,
        kept_on_gpu=pushed.get("kept", "none"),
        device="cuda",
        dtype="bfloat16",
        tensor_parallel_size=division.engine_gpus,
        max_model_len=lengths[1],
        num_cpus=cores.engine,
    )
    reward = RewardServiceConfig(
        slots=cores.slots, num_cpus=cores.slots, require_tier=hardware.tier
    )
    sampling = wish.run.sampling.model_copy(update={"max_tokens": lengths[0]})
    made = Sizing(
        shape=wish.shape,
        trainer=trainer,
        rollout=rollout,
        reward=reward,
        gpu_gib=hardware.gpu_gib,
        run=wish.run.model_copy(update={"sampling": sampling}),
    )
    return _using(made, hardware) if shared else made


def _using(sizing: Sizing, hardware: Hardware) -> Sizing:
    """With the memory that a sampling turn leaves to the engine."""
    assert sizing.shared_gpu is not None
    taken = sizing.shared_gpu.utilization(hardware.usable_gib)
    changes = {"gpu_memory_utilization": max(0.01, taken)}
    return replace(sizing, rollout=sizing.rollout.model_copy(update=changes))


def _filled(sizing: Sizing, hardware: Hardware) -> Sizing:
    """With as many sequences as the KV cache holds at their usual length, and with the state of the
    rank that may stay beside the most."""
    usual = sizing.rollout.max_model_len // _USUAL
    if sizing.shared_gpu is not None:
        for kept in reversed(KEPT):
            trainer = sizing.trainer.model_copy(update={"kept_on_gpu": kept})
            found = _using(replace(sizing, trainer=trainer), hardware)
            if found.engine.kv_tokens >= _MOST_SEQUENCES * usual or kept == "none":
                sizing = found
                break
    held = sizing.engine.kv_tokens // usual
    sequences = min(_MOST_SEQUENCES, max(_FEWEST_SEQUENCES, 1 << (held.bit_length() - 1)))
    changes = {"max_num_seqs": sequences}
    return replace(sizing, rollout=sizing.rollout.model_copy(update=changes))


def _with_run(sizing: Sizing, wish: Wish) -> Sizing:
    """With a batch that fills the engines twice, at most the example's own."""
    run = sizing.run
    assert run is not None
    filling = 2 * sizing.sequences // run.group_size
    groups = min(run.batch_groups, max(_FEWEST_GROUPS, 1 << (filling.bit_length() - 1)))
    changes: dict[str, Any] = {"batch_groups": groups, "model": wish.served_name}
    if wish.placement == "shared":
        changes["schedule"] = type(run.schedule)(preset="sync")
    if wish.lora is not None:
        rate = 10 * run.algorithm.learning_rate
        changes["algorithm"] = run.algorithm.model_copy(update={"learning_rate": rate})
    return replace(sizing, run=run.model_copy(update=changes))
