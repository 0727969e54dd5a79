"""Micro-batches as tensors: rows laid end to end, and their trained tokens laid flat."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from services.trainer.batch.batching import Row
from services.trainer.batch.packing import PackedRows


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
        weight: float32 `[N]`, 1; 0 for the one token of an empty micro-batch.
        lag: int64 `[N]`, versions between the one that sampled the token and the one that
            the trainer holds; -1 where there is nothing to compare.
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

    @property
    def sequences(self) -> int:
        """B, the number of rows."""
        return len(self.rows.lengths)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on another device."""
        return MicroBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def collate(rows: Sequence[Row], held_version: int) -> MicroBatch:
    """Lay out rows for one forward pass; no rows make a pass of weight 0."""
    if not rows:
        return _empty()
    ids: list[int] = []
    flat: dict[str, list[float]] = {name: [] for name in _FLAT}
    for index, row in enumerate(rows):
        one = row.trajectory
        before = len(ids) + len(one.prompt_token_ids) - 1
        ids += one.prompt_token_ids + one.response_token_ids
        trained = [i for i, keep in enumerate(one.loss_mask) if keep]
        versions = [s.version for s in one.spans for _ in range(s.start, s.end)]
        flat["row"] += [index] * len(trained)
        flat["position"] += [before + i for i in trained]
        flat["target"] += [one.response_token_ids[i] for i in trained]
        flat["behaviour"] += [one.behaviour_logprobs[i] for i in trained]
        flat["advantage"] += [row.advantage] * len(trained)
        flat["weight"] += [1.0] * len(trained)
        flat["lag"] += [held_version - versions[i] for i in trained]
    return MicroBatch(
        input_ids=torch.tensor(ids),
        rows=PackedRows.of([row.length for row in rows]),
        **{name: torch.tensor(flat[name], dtype=dtype) for name, dtype in _FLAT.items()},
    )


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
        lag=nothing.long() - 1,
    )


_FLAT = {
    "row": torch.int64,
    "position": torch.int64,
    "target": torch.int64,
    "behaviour": torch.float32,
    "advantage": torch.float32,
    "weight": torch.float32,
    "lag": torch.int64,
}


def _empty() -> MicroBatch:
    one = {name: torch.zeros(1, dtype=dtype) for name, dtype in _FLAT.items()}
    one["lag"] -= 1
    return MicroBatch(input_ids=torch.zeros(2, dtype=torch.int64), rows=PackedRows.of([2]), **one)
