"""What would fit where nothing that was asked for does."""

from collections.abc import Iterator
from dataclasses import replace

from millrace_tools.capacity.known_shapes import KNOWN_SHAPES
from millrace_tools.sizes.choice import Wish, candidates, chosen, problem
from millrace_tools.sizes.hardware import Hardware
from services.protocol.errors import InvalidInput
from services.protocol.model_source import HUB_PREFIX, name_or_path
from services.protocol.placement import Placement

_ADAPTER_RANK = 32
_MORE_GPUS = (2, 4, 8)
_LARGER_GIB = (24, 48, 80, 141)
_PLACEMENTS: tuple[Placement, ...] = ("separate", "shared")


def refusal(wishes: list[Wish]) -> InvalidInput:
    """The error for wishes, one for each placement that was asked for, none of which fits."""
    last = wishes[-1]
    every = [(one, wish.hardware) for wish in wishes for one in candidates(wish)]
    if every:
        least = min(every, key=lambda one: (bool(problem(*one)), one[0].most_gib))
        why = f"At best {problem(*least)}."
    else:
        why = "Ranks and engines with GPUs of their own need two at least."
    ways = [text for text, wish in _others(wishes) if chosen(wish) is not None]
    told = f" Each of these fits: {'; '.join(ways)}." if ways else " Nothing close to it fits."
    return InvalidInput("--model", f"{last.model} on {last.hardware}", why + told)


def _others(wishes: list[Wish]) -> Iterator[tuple[str, Wish]]:
    """Changes to what was asked for, the mildest first, with the options that make them."""
    last = wishes[-1]
    for placement in _PLACEMENTS:
        if placement not in [wish.placement for wish in wishes]:
            yield f"--placement {placement}", replace(last, placement=placement)
    for wish in wishes:
        asked = f" --placement {wish.placement}" if len(wishes) > 1 else ""
        if wish.lora is None:
            yield f"--offload all{asked}", replace(wish, offload="all")
            yield f"--lora {_ADAPTER_RANK}{asked}", replace(wish, lora=_ADAPTER_RANK)
    if (smaller := _largest_that_fits(wishes)) is not None:
        yield f"--model {smaller.model}", smaller
    for change, hardware in _larger(last.hardware):
        for wish in wishes:
            if chosen(found := replace(wish, hardware=hardware)) is not None:
                yield change, found
                break
        else:
            continue
        break


def _larger(hardware: Hardware) -> Iterator[tuple[str, Hardware]]:
    for gpus in _MORE_GPUS:
        if gpus > hardware.gpus:
            yield f"--gpus {gpus}", replace(hardware, gpus=gpus, cpus=None)
    for gib in _LARGER_GIB:
        if gib > hardware.gpu_gib:
            yield f"--gpu-gib {gib}", replace(hardware, gpu_gib=gib)


def _largest_that_fits(wishes: list[Wish]) -> Wish | None:
    """The largest known model of the same kind, else of any, that is smaller and fits."""
    last = wishes[-1]
    kind = name_or_path(last.model).partition("-")[0]
    count = last.shape.parameters
    assert count is not None
    smaller = [
        (name.startswith(kind), shape.parameters, name, shape)
        for name, shape in KNOWN_SHAPES.items()
        if shape.parameters is not None and shape.parameters < count and not shape.experts
    ]
    for _, _, name, shape in sorted(smaller, key=lambda one: one[:3], reverse=True):
        for wish in wishes:
            found = replace(wish, model=f"{HUB_PREFIX}{name}", shape=shape)
            if chosen(found) is not None:
                return found
    return None
