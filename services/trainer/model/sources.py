"""The tensors of a checkpoint that each parameter of a transformers model is made of.

Transformers reads a checkpoint under other names than it has in some architectures, and merges
the experts of a layer. It is asked for the names, and where the tensors lie in a merged parameter
is worked out, so that a part of a parameter can be read without the rest.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from services.trainer.model.stored_tensors import DamagedWeights, StoredTensor

MERGED = (("MergeModulelist", 0),)
"""What transformers does with the tensors of some experts: their number is the new dimension."""

MERGED_AND_JOINED = (("MergeModulelist", 0), ("Concatenate", 1))
"""The same with two kinds of tensors, such as gate and up, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A tensor of the checkpoint, as a box inside a parameter.

    Attributes:
        name: in the checkpoint.
        stored: its place in a file.
        start: index of its first element, in each dimension of the parameter.
        shape: in each dimension of the parameter; an expert's is 1 in the first.
    """

    name: str
    stored: StoredTensor
    start: tuple[int, ...]
    shape: tuple[int, ...]


def operations(converter: Any) -> tuple[tuple[str, int | None], ...]:
    """Name and dimension of what transformers does to tensors, to compare with those above."""
    return tuple((type(one).__name__, getattr(one, "dim", None)) for one in converter.operations)


def sources_of(
    causal: Any, stored: Mapping[str, StoredTensor], left_out: Collection[str]
) -> dict[str, list[Source]]:
    """The sources of every parameter and buffer that the checkpoint has something of, by name.

    Args:
        causal: a transformers model, on any device.
        stored: the checkpoint.
        left_out: names of parameters that it cannot have.

    Raises:
        DamagedWeights: a tensor is missing among those of a parameter, has another shape than the
            model's configuration says, or is no number that can be trained.
    """
    blank: dict[str, Tensor] = causal.state_dict()
    for name in left_out:
        blank.pop(name, None)
    transforms = get_model_conversion_mapping(causal)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    plain: dict[str, str] = {}
    merged: dict[str, dict[str, list[str]]] = {}
    for key in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(
            key, renamings, converters, causal.base_model_prefix, blank
        )
        if name not in blank and key in blank:  # it has the model's own name already
            name, pattern = key, None
        if name in blank and pattern is None:
            plain[name] = key
        elif name in blank and pattern is not None:
            merged.setdefault(name, {}).setdefault(pattern, []).append(key)
    found = {name: [_whole(blank[name], key, stored[key])] for name, key in plain.items()}
    for name, keys in merged.items():
        converter = by_pattern[next(iter(keys))]
        in_order = [keys.get(pattern, []) for pattern in converter.source_patterns]
        found[name] = list(_experts(name, blank[name], operations(converter), in_order, stored))
    return found


def _whole(blank: Tensor, key: str, stored: StoredTensor) -> Source:
    shape = tuple(blank.shape)
    _check(key, stored, shape, blank)
    return Source(name=key, stored=stored, start=(0,) * len(shape), shape=shape)


def _experts(
    name: str,
    blank: Tensor,
    done: tuple[tuple[str, int | None], ...],
    kinds: list[list[str]],
    stored: Mapping[str, StoredTensor],
) -> Iterable[Source]:
    if done != MERGED_AND_JOINED and (done != MERGED or len(kinds) != 1):
        raise DamagedWeights(
            f"its parameter {name} is made from the checkpoint by {[one for one, _ in done]}, "
            "which is not supported yet"
        )
    count, rows, *rest = blank.shape
    rows //= len(kinds)
    for index, keys in enumerate(kinds):
        if len(keys) != count:
            have = keys[-1] if keys else "none of the tensors"
            raise DamagedWeights(
                f"{name} is made of {count} experts, and the checkpoint has {len(keys)} "
                f"of one kind ({have} is the last)"
            )
        for expert, key in enumerate(keys):
            _check(key, stored[key], (rows, *rest), blank)
            start = (expert, index * rows, *(0 for _ in rest))
            yield Source(name=key, stored=stored[key], start=start, shape=(1, rows, *rest))


def _check(key: str, stored: StoredTensor, shape: tuple[int, ...], blank: Tensor) -> None:
    if stored.shape != shape:
        raise DamagedWeights(
            f"{key} has the shape {list(stored.shape)} in {stored.file}, but config.json makes "
            f"it {list(shape)}"
        )
    if stored.dtype is None or stored.dtype.is_floating_point != blank.is_floating_point():
        raise DamagedWeights(
            f"{key} in {stored.file} is quantized or no floating-point tensor; give the weights "
            "in bfloat16 or float32"
        )
