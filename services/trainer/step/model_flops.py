"""Model FLOPs of a train step, and the peak of a device, for MFU."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch

from services.trainer.batch.collate import MicroBatch
from services.trainer.config import TrainerConfig
from services.trainer.experts.share import share_met
from services.trainer.model.model import Policy

PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "A40": 150.0,
    "L4": 121.0,
    "A10": 125.0,
    "RTX 4090": 165.0,
}
"""Dense bfloat16 TFLOP/s by a part of the device's name, as NVIDIA's data sheets say; the first
part that is found counts."""


def peak_flops(config: TrainerConfig) -> float | None:
    """FLOP/s of one rank's device at most: `peak_tflops`, else by the name of the GPU; None on
    the CPU and for GPUs that the table lacks."""
    if config.peak_tflops is not None:
        return config.peak_tflops * 1e12
    if config.device != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name())


def peak_of(name: str) -> float | None:
    """FLOP/s of a GPU by its name."""
    return next((peak * 1e12 for part, peak in PEAK_TFLOPS.items() if part in name), None)


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """FLOPs of one forward and backward pass as the model needs them.

    Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B: 6 N + 12 L H Q T for each token, with N
    parameters, L layers, H heads of Q elements and T tokens of context. What is computed again,
    the passes of a reference, a proximal policy or a critic, and padding do not count. Of frozen
    parameters, which get no gradient, 4 N; of a mixture's experts those that a token meets.

    Attributes:
        of_token: 6 N.
        of_pair: 12 L H Q, for each token and token of its row.
    """

    of_token: float
    of_pair: float

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """Of a sharded policy."""
        text = policy.causal.config.get_text_config()
        per_token = sum(
            (6 if one.requires_grad else 4) * one.numel() * share_met(text, name)
            for name, one in policy.named_parameters()
        )
        heads = getattr(text, "num_attention_heads", 0)  # none in a state-space model
        width = getattr(text, "head_dim", None) or text.hidden_size // max(1, heads)
        return cls(of_token=per_token, of_pair=12.0 * text.num_hidden_layers * heads * width)

    def rows(self, lengths: Iterable[int]) -> float:
        """Of rows with so many tokens each."""
        return float(sum(n * (self.of_token + self.of_pair * n) for n in map(int, lengths)))

    def micro_batch(self, micro: MicroBatch) -> float:
        """Of its rows; what they share counts once."""
        return self.rows(micro.rows.lengths) - self.rows(micro.tree.shared if micro.tree else ())
