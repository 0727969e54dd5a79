"""A part of a checkpoint leaves the optimizer as it was, and brings it back as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from services.trainer.checkpoints.checkpoint import Part
from services.trainer.offload.host_moments import HostMomentsAdamW
from services.trainer.step.muon import MuonWithAdamW
from services.trainer.step.update import eight_bit_adamw

SETTINGS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}


def adamw(module: nn.Linear) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), fused=True, **SETTINGS)


def host_moments(module: nn.Linear) -> torch.optim.Optimizer:
    return HostMomentsAdamW(module.parameters(), fused=True, **SETTINGS)


def muon(module: nn.Linear) -> torch.optim.Optimizer:
    others = [{"params": [module.bias]}]
    return MuonWithAdamW([module.weight], others, momentum=0.9, fused=True, **SETTINGS)


def eight_bits(module: nn.Linear) -> torch.optim.Optimizer:
    pytest.importorskip("torchao")
    return eight_bit_adamw("trainer.moments")(list(module.parameters()), **SETTINGS)


KINDS = (adamw, host_moments, muon, eight_bits)


def new_part(kind: Callable[[nn.Linear], torch.optim.Optimizer]) -> Part:
    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    return Part(module=module, optimizer=kind(module))


def updated(part: Part) -> list[torch.Tensor]:
    """The parameters after two updates."""
    assert part.optimizer is not None
    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        for parameter in part.module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        part.optimizer.step()
    return [one.detach() for one in part.module.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_before_the_first_update_changes_no_update(
    kind: Callable[[nn.Linear], torch.optim.Optimizer],
) -> None:
    expected = updated(new_part(kind))
    part, resumed = new_part(kind), new_part(kind)
    state = part.state_dict()
    assert {float(one["step"]) for one in state["optimizer"]["state"].values()} == {0.0}
    resumed.load_state_dict(new_part(kind).state_dict())  # loading copies nothing
    for found in (updated(part), updated(resumed)):
        assert all(map(torch.equal, found, expected))


def test_a_checkpoint_between_updates_keeps_their_number() -> None:
    part = new_part(adamw)
    updated(part)
    state = part.state_dict()
    assert {float(one["step"]) for one in state["optimizer"]["state"].values()} == {2.0}
