"""On a GPU FlexAttention attends over a tree of rows as the parts on a CPU do."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from services.trainer.attention.tree_attention import tree_attention
from services.trainer.batch.prefix_tree import PrefixTree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCALE = 0.125
HEADS = ((14, 64), (2, 64), (2, 64))
"""Of queries, keys and values."""


def tree_of(seed: int) -> PrefixTree:
    """Rows of which each begins as the one before."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 260) for _ in range(12)]
    shared = [0, *(draw.randint(0, min(both)) for both in pairwise(lengths))]
    return PrefixTree.of(np.zeros(sum(lengths), np.int32), lengths, shared)


def attended(parts: list[Tensor], tree: PrefixTree) -> list[Tensor]:
    """The output and the gradients of queries, keys and values, in float64 on the CPU."""
    leaves = [one.detach().requires_grad_() for one in parts]
    out = tree_attention(*leaves, tree, SCALE)
    weights = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape).sin()
    gradients = torch.autograd.grad((out * weights.to(out)).sum(), leaves)
    return [one.detach().double().cpu() for one in (out, *gradients)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-2), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("seed", range(4))
def test_flex_attention_has_the_output_and_the_gradients_of_the_parts(dtype, bound, seed) -> None:
    tree, made = tree_of(seed), torch.Generator().manual_seed(seed)
    parts = [torch.randn(len(tree.place), *size, generator=made).to(dtype) for size in HEADS]
    expected = attended([one.double() for one in parts], tree)
    device = torch.device("cuda")
    found = attended([one.to(device) for one in parts], tree.to(device))
    for one, wanted in zip(found, expected, strict=True):
        assert (one - wanted).norm() < bound * wanted.norm()
