"""The tensors of a checkpoint, and loading the newest good one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful

from services.protocol.errors import InvalidInput
from services.trainer.checkpoints.folder import CheckpointFolder, GoodCheckpoint, newest_good
from services.trainer.checkpoints.manifest import (
    BadCheckpoint,
    CheckpointManifest,
    check_files,
    read_manifest,
)
from services.trainer.collectives import all_gather, from_rank_0, share

_RANDOM = "random"


_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""Checkpoints leave out what an adapter leaves frozen: those weights stay in the model's folder."""


@dataclass(frozen=True, kw_only=True)
class Part(Stateful):
    """A module and its optimizer; without an optimizer all parameters of the module are kept.

    Every method is collective; states are sharded.

    Attributes:
        trained_only: without an optimizer, too, only parameters that are trained.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    trained_only: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Parameters and optimizer as they are now."""
        if self.optimizer is None:
            return {"model": get_model_state_dict(self.module, options=self._chosen)}
        before = bool(self.optimizer.state)
        model, optimizer = get_state_dict(self.module, self.optimizer, options=_TRAINED)
        if not before:
            # Torch made an update of zeros, to have a state. Counted, it would change the
            # correction of bias in the updates to come; the moments are zeros all the same.
            for state in self.optimizer.state.values():
                state["step"].zero_()  # also in what is returned, which has the same tensors
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, and keep the optimizer's own settings."""
        if self.optimizer is None:
            set_model_state_dict(self.module, state["model"], options=self._chosen)
            return
        groups = self.optimizer.param_groups
        own = [{name: one for name, one in group.items() if name != "params"} for group in groups]
        set_state_dict(
            self.module,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_TRAINED,
        )
        for group, settings in zip(self.optimizer.param_groups, own, strict=True):
            group.update(settings)

    @property
    def _chosen(self) -> StateDictOptions | None:
        return _TRAINED if self.trained_only else None


Parts = Mapping[str, Part]
"""By the name under which a checkpoint keeps them."""


def state_of(parts: Parts) -> dict[str, Any]:
    """The parts, and the random state: the CPU's, which is the same on all ranks."""
    return {_RANDOM: torch.get_rng_state(), **parts}


def load_newest(
    folder: CheckpointFolder,
    parts: Callable[[], Parts],
    check: Callable[[CheckpointManifest], None],
) -> GoodCheckpoint | None:
    """Load the newest good checkpoint, written by any number of ranks. Collective.

    Those that turn out not to be good are set aside, once a good one is found.

    Args:
        folder: the same for all ranks.
        parts: gives what to load into; called when there is something to load.
        check: raises where a good checkpoint is another model's.

    Raises:
        InvalidInput: there are checkpoints and none is good, or it is of another model.
    """
    good, bad = newest_good(from_rank_0(folder.newest_first), _read_checked)
    if good is not None:
        check(good.manifest)
        _load(good, parts())
        if dist.get_rank() == 0:
            folder.set_aside(bad)
    elif bad:
        raise InvalidInput(
            "checkpoint_dir",
            str(folder.path),
            f"No checkpoint in it can be loaded: {'; '.join(bad.values())}. Restore one of "
            "them, or move them away to begin with the model's initial weights.",
        )
    return good


def _load(good: GoodCheckpoint, parts: Parts) -> None:
    state, manifest = state_of(parts), good.manifest
    try:
        load(state, checkpoint_id=good.path)
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        fix = f"Its files are whole, but do not fit the model and algorithm: {first}"
        if manifest.moments == "8bit" and manifest.world_size != dist.get_world_size():
            fix += f". 8-bit moments lie in blocks: load it with world_size {manifest.world_size}."
        raise InvalidInput("checkpoint_dir", str(good.path), fix) from None
    torch.set_rng_state(state[_RANDOM])


def _read_checked(path: Path) -> CheckpointManifest:
    """The manifest of a checkpoint; each rank checks its share of the files. Collective.

    Raises:
        BadCheckpoint: on all ranks: one of them found a problem.
    """
    manifest, problem = None, ""
    try:
        manifest = read_manifest(path)
        check_files(path, share(sorted(manifest.files.items())))
    except BadCheckpoint as error:
        problem = str(error)
    problem = next(filter(None, all_gather(problem)), "")
    if problem or manifest is None:
        raise BadCheckpoint(problem)
    return manifest
