"""Logprobs in pieces are those of plain autograd, and so are their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from services.trainer.model.token_logprobs import LogitForm, Logits, token_logprobs

N, HIDDEN, VOCABULARY = 23, 8, 37


def inputs(dtype: torch.dtype, *, bias: bool) -> tuple[Tensor, nn.Linear, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=bias, dtype=dtype)
    hidden = (3 * torch.randn(N, HIDDEN, dtype=dtype)).requires_grad_()
    return hidden, head, torch.randint(VOCABULARY, (N,))


def plain(
    hidden: Tensor, head: nn.Linear, target: Tensor, temperature: float, form: Any = None
) -> Any:
    logits = head(hidden)
    if form is not None:
        logits = logits * form.scale
        logits = logits if form.cap is None else form.cap * (logits / form.cap).tanh()
    logs = (logits / temperature).log_softmax(-1)
    return logs.gather(-1, target[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def gradients(of: Tensor, hidden: Tensor, head: nn.Linear) -> list[Tensor]:
    return list(torch.autograd.grad(of, [hidden, *head.parameters()]))


@pytest.mark.parametrize("entropy", ["value", "gradient"])
@pytest.mark.parametrize("tokens", [1, 5, N])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", [LogitForm(), LogitForm(scale=0.3), LogitForm(scale=2.0, cap=5.0)])
def test_values_and_gradients_are_those_of_plain_autograd(form, tokens, bias, entropy) -> None:
    hidden, head, target = inputs(torch.float64, bias=bias)
    slopes = torch.randn(2, N, dtype=torch.float64)
    slopes[0, 3] = 0  # a token that a mask took out
    expected = plain(hidden, head, target, 0.7, form)
    logits = Logits(temperature=0.7, form=form, max_bytes=tokens * VOCABULARY * 4)
    found = token_logprobs(hidden, head, target, logits, entropy=entropy)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with_entropy = slopes[1] if entropy == "gradient" else torch.zeros(N)
    assert found[1].requires_grad == (entropy == "gradient")
    wanted = gradients((slopes[0] * expected[0] + with_entropy * expected[1]).sum(), hidden, head)
    got = gradients((slopes[0] * found[0] + with_entropy * found[1]).sum(), hidden, head)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


def test_small_pieces_in_bfloat16_lose_no_more_than_one_large_one() -> None:
    hidden, head, target = inputs(torch.bfloat16, bias=False)
    errors = []
    wide = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.float64)
    wide.load_state_dict(head.state_dict())
    reference = hidden.detach().double().requires_grad_()
    wanted = gradients(plain(reference, wide, target, 1.0)[0].sum(), reference, wide)
    for tokens in (1, N):
        logprobs, _ = token_logprobs(
            hidden, head, target, Logits(max_bytes=tokens * VOCABULARY * 4), entropy="none"
        )
        assert logprobs.dtype == torch.float32
        got = gradients(logprobs.sum(), hidden, head)
        errors.append([float((a - b).abs().max()) for a, b in zip(got, wanted, strict=True)])
    assert errors[0] == pytest.approx(errors[1], rel=1.0)
    assert max(errors[0]) < 0.1


def test_logits_in_float32_leave_no_error_but_that_of_their_inputs() -> None:
    torch.manual_seed(0)
    tokens, width, words = 64, 1024, 32768
    hidden = torch.randn(tokens, width).bfloat16().requires_grad_()
    head = nn.Linear(width, words, bias=False, dtype=torch.bfloat16)
    nn.init.normal_(head.weight, std=7 / width**0.5)
    logits = hidden.detach().double() @ head.weight.detach().double().t()
    assert 30 < logits.max() < 45
    target = torch.multinomial(logits.softmax(-1), 1)[:, 0]
    expected = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
    errors = {}
    for float32 in (False, True):
        found, _ = token_logprobs(hidden, head, target, Logits(float32=float32), entropy="none")
        errors[float32] = (found.double() - expected).abs()
    assert errors[True].max() < 2e-5
    assert errors[False].mean() > 5e-3


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_float32_logits_are_rounded_once(bias) -> None:
    hidden, head, target = inputs(torch.bfloat16, bias=bias)
    wide = nn.Linear(HIDDEN, VOCABULARY, bias=bias, dtype=torch.float64)
    wide.load_state_dict(head.state_dict())
    reference = hidden.detach().double().requires_grad_()
    wanted = gradients(plain(reference, wide, target, 0.7)[0].sum(), reference, wide)
    logits = Logits(temperature=0.7, max_bytes=5 * VOCABULARY * 4)
    found, _ = token_logprobs(hidden, head, target, logits, entropy="none")
    got = gradients(found.sum(), hidden, head)
    for one, other in zip(got, wanted, strict=True):
        assert (one.double() - other).norm() <= 2**-7 * other.norm()


def test_the_largest_thing_held_is_one_piece() -> None:
    hidden, head, target = inputs(torch.float32, bias=False)
    sizes: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                sizes.append(result.numel())
            return result

    with Watch():
        logprobs, nothing = token_logprobs(
            hidden, head, target, Logits(max_bytes=4 * VOCABULARY * 4), entropy="none"
        )
    assert nothing is None
    assert max(sizes) <= 4 * VOCABULARY
    kept = sum(one.numel() for one in logprobs.grad_fn.saved_tensors if one is not None)
    assert kept <= hidden.numel() + head.weight.numel() + 2 * N


def test_no_tokens_are_no_trouble() -> None:
    hidden, head, target = inputs(torch.float32, bias=False)
    logprobs, _ = token_logprobs(hidden[:0], head, target[:0], Logits(max_bytes=4), entropy="value")
    assert logprobs.shape == (0,)
    assert gradients(logprobs.sum(), hidden, head)[1].abs().max() == 0


def test_a_second_backward_pass_is_refused_and_not_wrong() -> None:
    hidden, head, target = inputs(torch.float32, bias=False)
    logprobs, _ = token_logprobs(hidden, head, target, Logits(), entropy="value")
    logprobs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()
