"""The frozen model under a LoRA adapter: its digest, and its tensors for an export.

Checkpoints hold the adapter alone; the frozen weights stay where they were loaded from, and
a digest says whether they are still the same.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from services.protocol.errors import InvalidInput
from services.trainer.checkpoints.manifest import CheckpointManifest
from services.trainer.config import TrainerConfig
from services.trainer.experts.names import Part
from services.trainer.joint_work import joint_work
from services.transport.base_digest import base_digest, weight_files


def identify_base(config: TrainerConfig) -> str | None:
    """Digest of the frozen weights, None where nothing is frozen. Collective.

    Raises:
        InvalidInput: the model has no weights in files that could be compared.
    """
    if config.lora is None:
        return None
    with joint_work() as work:
        return work.of_rank_0(lambda: base_digest(config.model))


def refuse_other_base(
    manifest: CheckpointManifest, config: TrainerConfig, base: str | None
) -> None:
    """Refuse a checkpoint whose adapter means something else than this trainer's would.

    Raises:
        InvalidInput: it was trained on other weights, with another adapter, or without one.
    """
    theirs = manifest.lora and (manifest.lora.rank, manifest.lora.alpha, manifest.lora.targets)
    ours = config.lora and (config.lora.rank, config.lora.alpha, config.lora.targets)
    if theirs != ours:
        fix = f"The newest checkpoint is of trainer.lora {manifest.lora}; keep it, or begin a run."
        raise InvalidInput("trainer.lora", config.lora, fix)
    if manifest.base != base:
        fix = (
            f"The newest checkpoint's adapter was trained on weights with digest {manifest.base}, "
            f"but these have {base}. Give the model that the run began with."
        )
        raise InvalidInput("trainer.model", config.model, fix)


class FrozenBase:
    """The tensors of the model that an adapter was trained on."""

    def __init__(self, manifest: CheckpointManifest) -> None:
        """Find the model's files.

        Raises:
            InvalidInput: they are gone, or differ from the weights that the adapter was trained on.
        """
        if base_digest(manifest.model) != manifest.base:
            fix = "The checkpoint holds an adapter, to weights that this model no longer has."
            raise InvalidInput("model", manifest.model, fix)
        self._dtype = getattr(torch, manifest.dtype)
        self._file_of: dict[str, Path] = {}
        for file in weight_files(manifest.model):
            with safe_open(file, "pt") as opened:
                self._file_of |= dict.fromkeys(opened.keys(), file)

    def parameter(self, parts: Sequence[Part]) -> Tensor:
        """A parameter's elements, from its parts in order, in the type the trainer held."""
        if len(parts) == 1:
            return self._tensor(parts[0][0]).to(self._dtype)
        flat = [self._tensor(name).reshape(-1) for name, _ in parts]
        return torch.cat(flat).to(self._dtype)

    def _tensor(self, name: str) -> Tensor:
        with safe_open(self._file_of[name], "pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
        return tensor
