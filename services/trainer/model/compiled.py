"""Decoder layers compiled by torch: fewer and larger kernels, the same maths."""

import os
import shutil

import torch
from torch import nn
from transformers import AttentionInterface

from services.protocol.errors import InvalidInput
from services.trainer.attention.compiler_watch import watch_compiler
from services.trainer.model.packed_attention import PACKED, packed_attention

COMPILER = "inductor"
"""Torch's name of what turns a layer into kernels."""


def compile_layers(layers: nn.ModuleList, backend: str = COMPILER) -> None:
    """Have each layer compiled at its first forward pass, for any number of tokens.

    What FSDP does around a layer stays outside, and so does attention over packed rows, whose
    Python depends on the lengths of the rows: compiled, it would be compiled anew for every
    micro-batch.

    Raises:
        InvalidInput: there is no C++ compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if backend == COMPILER and shutil.which(compiler) is None:
        fix = (
            f"It needs a C++ compiler, and there is no {compiler!r} on the ranks' PATH: install "
            "one, name another in CXX, or leave compile out."
        )
        raise InvalidInput("trainer.compile", True, fix)
    attention = torch.compiler.disable(packed_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(PACKED, attention)
    watch_compiler()
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)
