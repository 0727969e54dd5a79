"""On a GPU the output layer of a bfloat16 model makes float32 logits."""

import pytest
import torch
from torch import nn

from services.trainer.model.token_logprobs import Logits, token_logprobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("bias", [False, True])
def test_logits_in_float32_leave_no_error_but_that_of_their_inputs(bias) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(64, 1024, device="cuda").bfloat16().requires_grad_()
    head = nn.Linear(1024, 32768, bias=bias, dtype=torch.bfloat16, device="cuda")
    nn.init.normal_(head.weight, std=7 / 32)
    logits = hidden.detach().double() @ head.weight.detach().double().t()
    logits += head.bias.detach().double() if bias else 0.0
    target = torch.multinomial(logits.float().softmax(-1), 1)[:, 0]
    expected = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
    found, _ = token_logprobs(hidden, head, target, Logits(), entropy="none")
    assert (found.double() - expected).abs().max() < 1e-4
    found.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
