"""Checkpoints that can be loaded on any number of ranks, complete or not there at all.

A checkpoint is written into a folder of another name and renamed when every rank is done,
so the highest `step-*` folder is always a complete one.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from services.trainer.model import Policy

_COMPLETE = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a checkpoint holds besides tensors.

    Attributes:
        step: train steps done.
        optimizer_steps: optimizer updates done.
        policy_version: version under which these weights were published.
    """

    step: int = 0
    optimizer_steps: int = 0
    policy_version: int = -1


def newest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step, None when there is none."""
    complete = _complete(folder)
    return complete[-1] if complete else None


def save_checkpoint(
    folder: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    kept: int,
) -> Path:
    """Write the ranks' state together and keep the newest `kept` checkpoints.

    Collective: every rank calls it. An existing checkpoint of the same step is replaced.
    """
    target = folder / f"step-{progress.step:08d}"
    writing = folder / f".writing-{target.name}"
    if dist.get_rank() == 0:
        shutil.rmtree(writing, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    policy.reshard_all()
    save(_state(policy, optimizer, progress), checkpoint_id=writing)
    if dist.get_rank() == 0:
        _replace(writing, target)
        for stale in _complete(folder)[:-kept]:
            shutil.rmtree(stale)
    dist.barrier()
    return target


def load_checkpoint(path: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> Progress:
    """Load a checkpoint written by any number of ranks. Collective.

    The random state is restored on the CPU, the only place where the trainer draws.
    """
    policy.reshard_all()
    state = _state(policy, optimizer, Progress())
    load(state, checkpoint_id=path)
    set_state_dict(
        policy.causal,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    torch.set_rng_state(state["rng"])
    return Progress(**{name: int(value) for name, value in state["progress"].items()})


def _state(policy: Policy, optimizer: torch.optim.Optimizer, progress: Progress) -> dict[str, Any]:
    # The inner model, so that parameters have the names of a Hugging Face checkpoint.
    model, optimizer_state = get_state_dict(policy.causal, optimizer)
    return {
        "model": model,
        "optimizer": optimizer_state,
        "rng": torch.get_rng_state(),
        "progress": dict(vars(progress)),
    }


def _complete(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _COMPLETE.fullmatch(path.name))


def _replace(written: Path, target: Path) -> None:
    """Rename into place; what was there is moved aside first, as folders do not overwrite."""
    aside = target.with_name(f".replaced-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    written.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
