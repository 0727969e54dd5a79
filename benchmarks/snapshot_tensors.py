"""The tensors of a rank's snapshot, as they travel."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from services.trainer.rank.learner import Learner


def snapshot_tensors(learner: "Learner", version: int) -> dict[str, Tensor]:
    """By the names of the checkpoint; of the only rank of a trainer."""
    sent = learner.snapshots.get(version)
    assert sent is not None
    raw = torch.cat([piece for bucket in sent.buckets for piece in bucket])
    found, at = {}, 0
    for spec in learner.model.tensors:
        size = sum(spec.shard_numels) * spec.dtype.itemsize
        piece = raw[at : at + size].clone().view(getattr(torch, spec.dtype))
        found[spec.name], at = piece.reshape(spec.shape), at + size
    return found
