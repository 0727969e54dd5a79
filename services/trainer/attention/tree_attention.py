"""Attention over the tree of a micro-batch's rows: a token sees its own and those above it.

On the CPU it is computed in parts: every segment within itself, and for every segment the tokens
that follow on it with its own. Parts are joined by their log-sum-exps, as in Milakov and
Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867, section 3; with those of
the whole the gradient of each part is one of the kernel's own. Its operations return them only
under private names, which nothing else here uses. On CUDA it is torch's FlexAttention.
"""

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from services.trainer.attention.compiler_watch import watch_compiler
from services.trainer.batch.prefix_tree import PrefixTree

_BLOCK = 128
"""Tokens of a block of FlexAttention's mask, its default."""


def tree_attention(
    query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float | None
) -> Tensor:
    """`[U, H, D]`, of queries `[U, H, D]`, keys and values `[U, K, D]`, H a multiple of K."""
    if query.is_cuda:
        return by_flex(query, key, value, tree, scale)
    attended: Tensor = _InParts.apply(query, key, value, tree, scale)  # type: ignore[no-untyped-call]
    return attended


class _InParts(torch.autograd.Function):
    """See `tree_attention`."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float | None
    ) -> Tensor:
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        precision = torch.promote_types(query.dtype, torch.float32)
        out = torch.empty_like(query, dtype=precision, memory_format=torch.contiguous_format)
        sums = out.new_empty(out.shape[:2])  # log-sum-exps
        for group in tree.segments.groups:
            own = slice(group.start, group.end)
            q, k, v = (group.padded(one) for one in (query, key, value))
            part, part_sums = forward(q, k, v, 0.0, True, scale=scale)
            out[own], sums[own] = group.flat(part), group.flat(part_sums)
        for start, end, last in tree.branched:
            q, k, v = (_heads(one) for one in (query[end:last], key[start:end], value[start:end]))
            part, part_sums = (_tokens(one) for one in forward(q, k, v, 0.0, False, scale=scale))
            below = slice(end, last)
            share = torch.sigmoid(part_sums - sums[below])
            out[below].lerp_(part.to(precision), share[..., None])
            sums[below] = torch.logaddexp(sums[below], part_sums)
        ctx.tree, ctx.scale = tree, scale
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        query, key, value, out, sums = ctx.saved_tensors
        tree: PrefixTree = ctx.tree
        gradients = [
            torch.empty_like(one, dtype=sums.dtype, memory_format=torch.contiguous_format)
            for one in (query, key, value)
        ]
        for group in tree.segments.groups:
            parts = (group.padded(one) for one in (by_out, query, key, value, out, sums))
            found = backward(*parts, 0.0, True, scale=ctx.scale)
            for whole, part in zip(gradients, found, strict=True):
                whole[group.start : group.end] = group.flat(part)
        for start, end, last in tree.branched:
            above, below = slice(start, end), slice(end, last)
            places = (below, below, above, above, below, below)
            tensors = (by_out, query, key, value, out, sums)
            parts = (_heads(one[own]) for one, own in zip(tensors, places, strict=True))
            found = backward(*parts, 0.0, False, scale=ctx.scale)
            for whole, part, own in zip(gradients, found, (below, above, above), strict=True):
                whole[own] += _tokens(part)
        return (*(one.to(query.dtype) for one in gradients), None, None)


def _heads(tokens: Tensor) -> Tensor:
    """`[n, H, ...]` as `[1, H, n, ...]`."""
    return tokens.transpose(0, 1)[None]


def _tokens(heads: Tensor) -> Tensor:
    """`[1, H, n, ...]` as `[n, H, ...]`."""
    return heads[0].transpose(0, 1)


def by_flex(
    query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scale: float | None
) -> Tensor:
    """`tree_attention` by FlexAttention (Dong et al., arXiv 2412.05496)."""
    q, k, v = (_heads(one) for one in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    out = _flex(query.is_cuda)(
        q, k, v, block_mask=block_mask(tree), scale=scale, enable_gqa=grouped
    )
    return _tokens(out)


@cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    if not compiled:
        return flex_attention
    watch_compiler()
    return torch.compile(flex_attention, dynamic=True)


@lru_cache(maxsize=1)  # the same for all layers
def block_mask(tree: PrefixTree) -> Any:
    """FlexAttention's mask of a tree, worked out for blocks of tokens and not for pairs.

    A token q sees k if `k <= q < last[k]`. So a block of queries sees all of a block of keys if
    the former begins behind the latter and ends before the first of its `last`, and nothing if
    it begins at the last of them.
    """
    from torch.nn.attention.flex_attention import BlockMask

    last, tokens = tree.last, len(tree.place)
    blocks = -(-tokens // _BLOCK)
    # What lies behind the sequence is seen by nothing, itself included.
    padded = torch.nn.functional.pad(last, (0, blocks * _BLOCK - tokens))
    lowest, highest = padded.view(-1, _BLOCK).aminmax(dim=1)
    begins = torch.arange(blocks, device=last.device) * _BLOCK
    behind = begins[:, None] > begins
    full = behind & (begins[:, None] + _BLOCK <= lowest)
    some = (behind | (begins[:, None] == begins)) & (begins[:, None] < highest) & ~full

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < padded[k])

    return BlockMask.from_kv_blocks(
        *_indexes(some),
        *_indexes(full),
        BLOCK_SIZE=_BLOCK,
        mask_mod=sees,
        seq_lengths=(tokens, tokens),
    )


def _indexes(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys are chosen for each block of queries, and these first."""
    order = torch.argsort(chosen.int(), dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], order.int()[None, None]
