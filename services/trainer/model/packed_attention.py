"""Causal attention within each row of a packed sequence, as transformers calls it.

Nothing is masked: a token is never multiplied with one of another row. On CUDA in half
precision torch's kernel for rows of unequal length does it. Elsewhere rows of similar length
are padded for the attention alone, which costs less than a mask over the whole sequence: a
mask costs the square of all rows together.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.trainer.attention.tree_attention import tree_attention
from services.trainer.batch.packing import PackedRows, RowGroup
from services.trainer.batch.prefix_tree import PrefixTree
from services.trainer.model.context_parallel import ALONE, ContextGroup

PACKED = "millrace_packed"
"""Name of this attention in transformers' registry."""

_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


class Unpackable(Exception):
    """The model's attention uses a feature that is not supported for packed rows."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_rows: PackedRows | PrefixTree | None = None,
    context_group: ContextGroup = ALONE,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer over packed rows.

    Args:
        module: the layer; not used.
        query: `[1, H, T, D]`; with C ranks in a context group this rank's slice, `T/C` of T.
        key: `[1, K, T, D]`, H a multiple of K; likewise.
        value: `[1, K, T, D]`; likewise.
        attention_mask: None.
        packed_rows: the rows, or their tree.
        context_group: the ranks that share them.
        scaling: of the scores; None for `1 / sqrt(D)`.
        sliding_window: tokens that a token sees, itself counted; None for all before it.
        dropout: 0.
        others: further arguments of layers; not used.

    Returns:
        `[1, T, H, D]`, likewise of the slice, and None for attention weights.

    Raises:
        Unpackable: the layer uses a feature that is not supported here.
    """
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise Unpackable(f"its attention uses {name}")
    tokens = 0 if packed_rows is None else len(packed_rows.place)
    if packed_rows is None or query.shape[::2] != (1, context_group.width(tokens)):
        raise Unpackable("its layers do not hand packed rows on to their attention")
    if attention_mask is not None or dropout:
        raise Unpackable("its attention has a mask or dropout of its own")
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    if isinstance(packed_rows, PrefixTree):
        if sliding_window is not None and sliding_window < packed_rows.depth:
            raise Unpackable("its attention does not see all tokens before one")
        return tree_attention(q, k, v, packed_rows, scaling)[None], None
    if context_group.size == 1:
        return _attended(q, k, v, packed_rows, scaling, sliding_window)[None], None
    q, k, v = context_group.to_heads(q, k, v, tokens)
    whole = _attended(q, k, v, packed_rows, scaling, sliding_window)
    return context_group.to_tokens(whole)[None], None


def _attended(
    q: Tensor, k: Tensor, v: Tensor, rows: PackedRows, scale: float | None, window: int | None
) -> Tensor:
    """`[T, heads, D]` of all rows."""
    if window is not None and window >= rows.longest:
        window = None
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return _by_kernel(q, k, v, rows, scale, window)
    parts = [_by_group(q, k, v, one, scale, window) for one in rows.groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_kernel(
    q: Tensor, k: Tensor, v: Tensor, rows: PackedRows, scale: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # registers kernels; only CUDA has them

    longest = rows.longest
    back = -1 if window is None else window - 1
    result = varlen_attn(
        q,
        k,
        v,
        rows.ends,
        rows.ends,
        longest,
        longest,
        scale=scale,
        window_size=(back, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(result, Tensor), "nothing but the output was asked for"
    return result


def _by_group(
    q: Tensor, k: Tensor, v: Tensor, group: RowGroup, scale: float | None, window: int | None
) -> Tensor:
    """`[T, heads, D]` of one group; padding stands after a row, where causality hides it."""
    mask = None
    if window is not None and window < group.width:
        place = torch.arange(group.width, device=q.device)
        behind = place[:, None] - place
        mask = (behind >= 0) & (behind < window)
    q, k, v = (group.padded(one) for one in (q, k, v))
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return group.flat(out)


def packed_hidden(
    causal: Any, input_ids: Tensor, rows: PackedRows | PrefixTree, group: ContextGroup = ALONE
) -> Tensor:
    """Last hidden states `[T, hidden]` of packed `input_ids` `[T]`, or of a slice of them.

    Args:
        causal: switched to packed rows.
        input_ids: of the whole sequence.
        rows: in it, or the tree that it is.
        group: the ranks that share it; each gets the states of its slice.
    """
    shared = {} if group.size == 1 else {"context_group": group}
    states: Tensor = causal.base_model(
        input_ids=group.own(input_ids)[None],
        position_ids=group.own(rows.place)[None],
        use_cache=False,
        packed_rows=rows,
        **shared,
    ).last_hidden_state
    return states[0]


def padded_hidden(causal: Any, input_ids: Tensor, rows: PackedRows) -> Tensor:
    """The same of a model that cannot be packed: rows one below the other.

    Padding on the right needs no mask: under causal attention no token sees it.
    """
    padded = input_ids.new_zeros(len(rows.lengths), rows.longest)
    padded[rows.row, rows.place] = input_ids
    states: Tensor = causal.base_model(input_ids=padded, use_cache=False).last_hidden_state
    return states[rows.row, rows.place]


AttentionInterface.register(PACKED, packed_attention)
