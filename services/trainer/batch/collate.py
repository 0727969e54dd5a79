"""Micro-batches as tensors: rows laid end to end, and their trained tokens laid flat."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.protocol.train_batch import starts
from services.trainer.batch.packing import PackedRows
from services.trainer.batch.prefix_tree import PrefixTree
from services.trainer.batch.rank_batch import Rows


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """B rows of T tokens together, and their N trained tokens laid flat.

    Attributes:
        input_ids: int64 `[T]`, rows end to end.
        rows: where each row lies.
        row: int64 `[N]`, the row of each trained token.
        position: int64 `[N]`, the place in `input_ids` that predicts it: its own minus one.
        target: int64 `[N]`, the token itself.
        behaviour: float32 `[N]`, behaviour logprobs.
        advantage: float32 `[N]`.
        weight: float32 `[N]`, 1; 0 for tokens of given answers, and for the one token of an
            empty micro-batch.
        lag: int64 `[N]`, versions between the one that sampled the token and the one that
            the trainer holds; -1 where there is nothing to compare.
        sampled: float32 `[B]`, tokens of each row that the policy sampled, those included that
            are too old to be trained.
        given: float32 `[N]`, 1 for tokens of given answers, else 0.
        teacher: float32 `[N]`, a teacher's logprobs; None without one.
        tree: what is computed in place of the rows; None where they share nothing.
    """

    input_ids: Tensor
    rows: PackedRows
    row: Tensor
    position: Tensor
    target: Tensor
    behaviour: Tensor
    advantage: Tensor
    weight: Tensor
    lag: Tensor
    sampled: Tensor
    given: Tensor
    teacher: Tensor | None = None
    tree: PrefixTree | None = None

    @property
    def sequences(self) -> int:
        """B, the number of rows."""
        return len(self.rows.lengths)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on another device."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return MicroBatch(
            **{name: one.to(device) for name, one in values.items() if one is not None}
        )


def collate(rows: Rows, held_version: int) -> MicroBatch:
    """Lay out rows for one forward pass; no rows make a pass of weight 0."""
    if not len(rows):
        return _empty()
    tokens = rows.tokens
    kept = tokens.kept()
    row = np.arange(len(rows)).repeat(tokens.answer)[kept]
    # All prompts up to a token's own lie before it, besides the answers' tokens.
    target = kept + starts(tokens.prompt)[1:][row]
    given = rows.given[row]
    versions = tokens.span_version.repeat(tokens.span_tokens)[kept]
    flat = {
        "row": row,
        "position": target - 1,
        "target": tokens.ids[target],
        "behaviour": tokens.logprobs[kept],
        "advantage": _advantages(rows)[kept],
        "weight": ~given,
        "given": given,
        "lag": np.where(given, -1, held_version - versions),
    }
    lengths, tree = tokens.lengths.tolist(), None
    if rows.shared.any():
        tree = PrefixTree.of(tokens.ids, lengths, rows.shared.tolist(), target)
    return MicroBatch(
        input_ids=torch.from_numpy(tokens.ids.astype(np.int64)),
        rows=PackedRows.of(lengths),
        sampled=torch.from_numpy(rows.sampled).float(),
        teacher=torch.from_numpy(tokens.teacher[kept]) if len(tokens.teacher) else None,
        tree=tree,
        **{name: torch.from_numpy(flat[name]).to(dtype) for name, dtype in _FLAT.items()},
    )


def _advantages(rows: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of each response token."""
    tokens = rows.tokens
    if len(tokens.turn_return):
        return tokens.turn_return.repeat(tokens.turn_tokens)
    return rows.advantages.repeat(tokens.answer)


def collate_sequences(sequences: Sequence[Sequence[int]]) -> MicroBatch:
    """Lay out whole sequences so that every token but the first is scored."""
    if not sequences:
        return _empty()
    rows = PackedRows.of([len(one) for one in sequences])
    input_ids = torch.tensor([token for one in sequences for token in one])
    position = (rows.place > 0).nonzero()[:, 0] - 1
    nothing = torch.zeros(len(position))
    return MicroBatch(
        input_ids=input_ids,
        rows=rows,
        row=rows.row[position],
        position=position,
        target=input_ids[position + 1],
        behaviour=nothing,
        advantage=nothing,
        weight=nothing,
        given=nothing,
        lag=nothing.long() - 1,
        sampled=torch.ones(len(sequences)),
    )


_FLAT = {
    "row": torch.int64,
    "position": torch.int64,
    "target": torch.int64,
    "behaviour": torch.float32,
    "advantage": torch.float32,
    "weight": torch.float32,
    "given": torch.float32,
    "lag": torch.int64,
}


def _empty() -> MicroBatch:
    one: dict[str, Any] = {name: torch.zeros(1, dtype=dtype) for name, dtype in _FLAT.items()}
    one["lag"] -= 1
    ids = torch.zeros(2, dtype=torch.int64)
    return MicroBatch(input_ids=ids, rows=PackedRows.of([2]), sampled=torch.ones(1), **one)
