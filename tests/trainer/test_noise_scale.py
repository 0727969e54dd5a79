"""The gradient noise scale, beside noise that is known."""

import pytest
import torch

from services.trainer.offload.host_moments import HostMomentsAdamW
from services.trainer.step.noise_scale import gradient_noise_scale

SIZE, ANSWERS = 20_000, 8


def adamw_after(updates: int, noise: float, kind: type = torch.optim.AdamW) -> torch.optim.AdamW:
    """AdamW after gradients of 1 for each element, and noise of this deviation."""
    chance = torch.Generator().manual_seed(updates)
    parameters = [torch.nn.Parameter(torch.zeros(SIZE // 2)) for _ in range(2)]
    optimizer = kind(parameters, lr=0.0, betas=(0.9, 0.95))
    for _ in range(updates):
        for one in parameters:
            one.grad = 1.0 + noise * torch.randn(one.shape, generator=chance)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("updates", [2, 5, 60])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_it_is_the_noise_over_the_signal_in_answers(updates: int, noise: float) -> None:
    found = gradient_noise_scale(adamw_after(updates, noise), ANSWERS)
    assert found == pytest.approx(ANSWERS * noise**2, rel=0.15)


def test_without_noise_it_is_0() -> None:
    assert gradient_noise_scale(adamw_after(9, 0.0), ANSWERS) == pytest.approx(0.0, abs=1e-4)


def test_there_is_none_without_a_signal_before_two_updates_or_without_moments_at_hand() -> None:
    alone = adamw_after(30, 0.5)
    for state in alone.state.values():
        state["exp_avg"].zero_()
    assert gradient_noise_scale(alone, ANSWERS) is None
    assert gradient_noise_scale(adamw_after(0, 1.0), ANSWERS) is None
    assert gradient_noise_scale(adamw_after(1, 1.0), ANSWERS) is None
    assert gradient_noise_scale(adamw_after(5, 1.0, HostMomentsAdamW), ANSWERS) is None
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    assert gradient_noise_scale(plain, ANSWERS) is None
