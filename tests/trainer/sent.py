"""What a receiver puts together."""

from typing import Any

import numpy as np


def sent_tensors(described: Any, snapshots: list[list[bytes]]) -> dict[str, np.ndarray]:
    """Float32 tensors by name, from the buckets of the ranks that send."""
    pieces: dict[str, list[np.ndarray]] = {spec.name: [] for spec in described.tensors}
    for rank, buckets in enumerate(snapshots):
        flat = np.frombuffer(b"".join(buckets), dtype=np.float32)
        ends = np.cumsum([spec.shard_numels[rank] for spec in described.tensors])
        for spec, piece in zip(described.tensors, np.split(flat, ends[:-1]), strict=True):
            pieces[spec.name].append(piece)
    return {
        spec.name: np.concatenate(pieces[spec.name]).reshape(spec.shape)
        for spec in described.tensors
    }
