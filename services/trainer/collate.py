"""Micro-batches as tensors: padded rows in, flat response tokens out."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from services.trainer.batching import Row


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """B rows padded on the right to length L, and their N trained tokens laid flat.

    Right padding needs no attention mask: under causal attention no real token sees it.

    Attributes:
        input_ids: int64 `[B, L]`.
        row: int64 `[N]`, the row of each trained token.
        column: int64 `[N]`, the position that predicts it: its own minus one.
        target: int64 `[N]`, the token itself.
        behaviour: float32 `[N]`, behaviour logprobs.
        advantage: float32 `[N]`.
        weight: float32 `[N]`, 1; 0 for the one token of an empty micro-batch.
        lag: int64 `[N]`, versions between the one that sampled the token and the one that
            the trainer holds; -1 where there is nothing to compare.
    """

    input_ids: Tensor
    row: Tensor
    column: Tensor
    target: Tensor
    behaviour: Tensor
    advantage: Tensor
    weight: Tensor
    lag: Tensor

    @property
    def sequences(self) -> int:
        """B, the number of rows."""
        return self.input_ids.shape[0]

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on another device."""
        return MicroBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def collate(rows: Sequence[Row], held_version: int) -> MicroBatch:
    """Lay out rows for one forward pass; no rows make a pass of weight 0."""
    if not rows:
        return _empty()
    width = max(row.length for row in rows)
    input_ids = torch.zeros((len(rows), width), dtype=torch.int64)
    flat: dict[str, list[float]] = {name: [] for name in _FLAT}
    for index, row in enumerate(rows):
        one = row.trajectory
        input_ids[index, : row.length] = torch.tensor(
            one.prompt_token_ids + one.response_token_ids, dtype=torch.int64
        )
        prompt = len(one.prompt_token_ids)
        trained = [i for i, keep in enumerate(one.loss_mask) if keep]
        versions = [s.version for s in one.spans for _ in range(s.start, s.end)]
        flat["row"] += [index] * len(trained)
        flat["column"] += [prompt + i - 1 for i in trained]
        flat["target"] += [one.response_token_ids[i] for i in trained]
        flat["behaviour"] += [one.behaviour_logprobs[i] for i in trained]
        flat["advantage"] += [row.advantage] * len(trained)
        flat["weight"] += [1.0] * len(trained)
        flat["lag"] += [held_version - versions[i] for i in trained]
    tensors = {name: torch.tensor(flat[name], dtype=dtype) for name, dtype in _FLAT.items()}
    return MicroBatch(input_ids=input_ids, **tensors)


def collate_sequences(sequences: Sequence[Sequence[int]]) -> MicroBatch:
    """Lay out whole sequences so that every token but the first is scored."""
    if not sequences:
        return _empty()
    width = max(map(len, sequences))
    input_ids = torch.zeros((len(sequences), width), dtype=torch.int64)
    for index, sequence in enumerate(sequences):
        input_ids[index, : len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
    places = [(r, c) for r, one in enumerate(sequences) for c in range(len(one) - 1)]
    row = torch.tensor([r for r, _ in places], dtype=torch.int64)
    column = torch.tensor([c for _, c in places], dtype=torch.int64)
    nothing = torch.zeros(len(places))
    return MicroBatch(
        input_ids=input_ids,
        row=row,
        column=column,
        target=input_ids[row, column + 1],
        behaviour=nothing,
        advantage=nothing,
        weight=nothing,
        lag=nothing.long() - 1,
    )


_FLAT = {
    "row": torch.int64,
    "column": torch.int64,
    "target": torch.int64,
    "behaviour": torch.float32,
    "advantage": torch.float32,
    "weight": torch.float32,
    "lag": torch.int64,
}


def _empty() -> MicroBatch:
    one = {name: torch.zeros(1, dtype=dtype) for name, dtype in _FLAT.items()}
    one["lag"] -= 1
    return MicroBatch(input_ids=torch.zeros((1, 2), dtype=torch.int64), **one)
