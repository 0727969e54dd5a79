"""The policy's parameters and buffers in one checkpoint, read without ranks."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

_PARAMETERS = "policy.model."


class CheckpointParameters:
    """By name; `load` reads only the named ones.

    Attributes:
        shapes: of every parameter that was trained, and of every buffer.
        dtypes: the same, in which they were held.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._reader = FileSystemReader(checkpoint)
        known = self._reader.read_metadata().state_dict_metadata
        self._stored = {
            name.removeprefix(_PARAMETERS): held
            for name, held in known.items()
            if name.startswith(_PARAMETERS) and isinstance(held, TensorStorageMetadata)
        }
        self.shapes = {name: tuple(held.size) for name, held in self._stored.items()}
        self.dtypes = {name: held.properties.dtype for name, held in self._stored.items()}

    def load(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Whole tensors, in the element types in which they were trained."""
        state: dict[str, Any] = {
            f"{_PARAMETERS}{name}": torch.empty(
                self._stored[name].size, dtype=self._stored[name].properties.dtype
            )
            for name in names
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # as it should
            load(state, storage_reader=self._reader, no_dist=True)
        return {name.removeprefix(_PARAMETERS): tensor for name, tensor in state.items()}
