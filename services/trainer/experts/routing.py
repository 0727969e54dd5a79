"""What the routers of a mixture of experts decide, and the loss that balances experts.

Routers are watched by hooks, in forward passes that are asked for: a second pass that
recomputes activations counts nothing twice. Which modules are routers, and which of their
outputs are logits, transformers knows (`_can_record_outputs`, private; one place, one test).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SIGMOID = "e_score_correction_bias"
"""The buffer of routers that score experts by a sigmoid each (DeepSeek-V3, arXiv:2412.19437)."""


@dataclass
class Watch:
    """One forward pass of R routers, each with E experts.

    Attributes:
        places: int64, the tokens among those that routers see; None: all. Others are padding.
        keep: whether probabilities are wanted with their gradient.
        counts: float32 `[E]` of each router: choices of each expert.
        entropies: float32 `[]` of each router, of its probabilities, summed over tokens, in nats.
        tokens: how many were routed by each.
        logits: `[T, E]` of each router, padding included, with gradient, if they are kept.
    """

    places: Tensor | None
    keep: bool
    counts: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logits: list[tuple[Tensor, bool]] = field(default_factory=list)

    def balance_loss(self) -> Tensor:
        """`E sum_i f_i P_i`, averaged over routers, with gradient.

        f_i is expert i's share of the choices and P_i its mean probability (Fedus et al., "Switch
        Transformers", arXiv:2101.03961, section 2.2, equations 4 to 6). Even routing gives 1.
        """
        losses = []
        for (logits, sigmoid), counts in zip(self.logits, self.counts, strict=True):
            own = logits if self.places is None else logits[self.places]
            mean = _probabilities(own, sigmoid=sigmoid).mean(0)
            losses.append(len(counts) * (counts / counts.sum() * mean).sum())
        return torch.stack(losses).mean()


class Routing:
    """The routers of a model, none in a dense one."""

    def __init__(self, causal: nn.Module) -> None:
        self._watch: Watch | None = None
        self.routers = 0
        for module, index in _routers(causal):
            self.routers += 1
            module.register_forward_hook(_Hook(self, index))

    @contextmanager
    def watched(self, places: Tensor | None, *, keep: bool) -> Iterator[Watch]:
        """Inside, forward passes are counted; see `Watch`."""
        self._watch = watch = Watch(places=places, keep=keep)
        try:
            yield watch
        finally:
            self._watch = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # what it keeps is no output
    def count(self, router: nn.Module, logits: Tensor, chosen: Tensor) -> None:
        """Count what a router made of its tokens, if a pass is watched."""
        watch = self._watch
        if watch is None:
            return
        experts, sigmoid = logits.shape[-1], hasattr(router, SIGMOID)
        logits, chosen = logits.view(-1, experts), chosen.view(-1, chosen.shape[-1])
        if watch.keep:
            # Only kept, not computed with: no pass is watched while activations are recomputed,
            # so that what an operation here saved for its gradient would be missing then.
            watch.logits.append((logits, sigmoid))
        with torch.no_grad():
            if watch.places is not None:
                logits, chosen = logits[watch.places], chosen[watch.places]
            ones = torch.ones(chosen.numel(), device=chosen.device)
            counts = torch.zeros(experts, device=chosen.device)
            watch.counts.append(counts.index_add_(0, chosen.flatten(), ones))
            entropy = torch.special.entr(_probabilities(logits, sigmoid=sigmoid)).sum()
            watch.entropies.append(entropy)
            watch.tokens.append(len(logits))


class _Hook:
    def __init__(self, routing: Routing, index: int) -> None:
        self._routing, self._index = routing, index

    def __call__(self, router: nn.Module, _: Any, output: tuple[Tensor, ...]) -> None:
        chosen = next(one for one in output if not one.is_floating_point())
        self._routing.count(router, output[self._index], chosen)


def experts_of(layer: nn.Module) -> Iterator[nn.Module]:
    """The modules of a layer that hold the stacked weights of several experts."""
    for module in layer.modules():
        stacked = [one.dim() == 3 for one in module.parameters(recurse=False)]
        if stacked and any(stacked) and hasattr(module, "num_experts"):
            yield module


def _probabilities(logits: Tensor, *, sigmoid: bool) -> Tensor:
    """Float32 `[tokens, E]`; of a sigmoid router its scores, divided by their sum."""
    logits = logits.float()
    if not sigmoid:
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / scores.sum(-1, keepdim=True)


def _routers(causal: nn.Module) -> Iterator[tuple[nn.Module, int]]:
    """Routers, each with the place of the logits among its outputs."""
    recorded: dict[type[nn.Module], int] = {}
    for module in causal.modules():
        known = getattr(type(module), "_can_record_outputs", None) or {}
        recorder = known.get("router_logits")
        if recorder is not None:
            kind = getattr(recorder, "target_class", recorder)
            recorded[kind] = getattr(recorder, "index", 0)
    for module in causal.modules():
        if type(module) in recorded:
            yield module, recorded[type(module)]
