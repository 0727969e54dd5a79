"""Settings that would make a model fit, cheapest first."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.protocol.errors import InvalidInput
from services.trainer.config import TrainerConfig
from services.trainer.sizing.rank_memory import rank_gib
from services.trainer.sizing.training import Training

_COUNT = 3
_LORA = {"rank": 32, "alpha": 64.0}
_MOST_RANKS = 1024
_LEAST_TOKENS = 1024

Changes = Mapping[str, Any]


def check_fits(
    training: Training,
    gpu_gib: float,
    *,
    beside: Mapping[str, float] | None = None,
    cheaper: Sequence[str] = (),
) -> None:
    """Refuse a model that its ranks cannot hold.

    Args:
        training: what they hold and do.
        gpu_gib: memory of a GPU.
        beside: GiB that others hold on it meanwhile, by name.
        cheaper: settings of others that make the rank fit, cheaper than its own.

    Raises:
        InvalidInput: with the figure, the limit, and at most three keys that would make it fit.
    """
    needed, taken = rank_gib(training), sum((beside or {}).values())
    if needed + taken <= gpu_gib:
        return
    found = [*cheaper, *remedies(training, gpu_gib - taken)][:_COUNT]
    fix = f"A rank needs about {needed:.1f} GiB of its GPU's {gpu_gib:.1f}"
    if beside:
        told = " and ".join(f"{size:.1f} for {name}" for name, size in beside.items())
        fix += f", beside {told}"
    if training.longest_row > training.trainer.micro_batch_tokens:
        fix += f" for a row of {training.longest_row:,} tokens, the engines' max_model_len"
    fix += ". "
    if found:
        fix += f"Each of these makes it fit, cheapest first: {'; '.join(found)}."
    else:
        fix += "No single setting makes it fit: take a smaller model or larger GPUs."
    raise InvalidInput("trainer.model", training.trainer.model, fix)


def remedies(training: Training, gpu_gib: float) -> list[str]:
    """At most three changes of which each makes the model fit, in the order of their cost.

    First what costs no time: gradients that stay sharded. Then what costs a part of a step:
    activations that are computed again or wait in host memory, smaller micro-batches, rows that
    ranks share, state in host memory. Then what costs GPUs: more ranks. Last what trains
    otherwise: an adapter. Where one key is not enough, those that cost no GPUs accompany it.
    """
    free = _first_kinds(training.trainer)
    small = {**free, "micro_batch_tokens": _LEAST_TOKENS}
    if training.longest_row > _LEAST_TOKENS:  # which smaller micro-batches leave as it is
        small["activation_offload"] = True
    found: dict[str, str] = {}
    ladders = _ladders(training)
    shared = [one for one in ladders["context_parallel"] if training.shards % one == 0]
    most = {**small, "context_parallel": shared[-1]} if shared else small
    for base in ({}, free, small, most):
        for key, values in ladders.items():
            if key in base or key in found:
                continue
            for value in values:
                if _fits(training, {**base, key: value}, gpu_gib):
                    extra = [_text(*one) for one in base.items()]
                    found[key] = " with ".join([_text(key, value), *extra])
                    break
    costs = list(ladders)
    if training.trainer.placement == "shared" and "world_size" in found:
        found["world_size"] += " and as many GPUs for engines"
    return [found[key] for key in sorted(list(found)[:_COUNT], key=costs.index)]


def _first_kinds(trainer: TrainerConfig) -> dict[str, Any]:
    """Changes that need no more GPUs and leave results as they are."""
    changes: dict[str, Any] = {}
    if trainer.gradient_sync != "every_micro_batch":
        changes["gradient_sync"] = "every_micro_batch"
    if not trainer.activation_checkpointing:
        changes["activation_checkpointing"] = True
    return changes


def _ladders(training: Training) -> dict[str, list[Any]]:
    """Values of each key, mildest first, by key in the order of cost."""
    trainer = training.trainer
    tokens, ranks = [trainer.micro_batch_tokens // 2], [2 * trainer.world_size]
    while tokens[-1] > _LEAST_TOKENS:
        tokens.append(tokens[-1] // 2)
    while ranks[-1] < _MOST_RANKS:
        ranks.append(2 * ranks[-1])
    ladders = {key: [value] for key, value in _first_kinds(trainer).items()}
    if not trainer.activation_offload:
        ladders["activation_offload"] = [True]
    ladders["micro_batch_tokens"] = [one for one in tokens if one >= _LEAST_TOKENS]
    sharing = (trainer.context_parallel * factor for factor in (2, 4, 8))
    ladders["context_parallel"] = [one for one in sharing if training.shape.heads % one == 0]
    adamw = training.algorithm.optimizer == "adamw"  # Muon goes with neither of the two
    if trainer.offload != "all" and adamw:
        ladders["offload"] = ["optimizer", "all"]
    ladders["world_size"] = [one for one in ranks if one <= _MOST_RANKS]
    ladders["lora"] = [_LORA] if trainer.lora is None and adamw else []
    return ladders


def _text(key: str, value: Any) -> str:
    if isinstance(value, dict):
        value = "{" + ", ".join(f"{name}: {one:g}" for name, one in value.items()) + "}"
    return f"{key}: {str(value).lower() if isinstance(value, bool) else value}"


def _fits(training: Training, changes: Changes, gpu_gib: float) -> bool:
    try:
        trainer = TrainerConfig.model_validate(training.trainer.model_dump() | dict(changes))
    except ValueError:  # settings that exclude each other
        return False
    return rank_gib(replace(training, trainer=trainer)) <= gpu_gib
