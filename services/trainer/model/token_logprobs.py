"""Logprobs of given tokens from hidden states, without logits of all of them at once.

The output layer and the softmax are done for a piece of the tokens at a time. What one piece
holds is kept for the backward pass only when there is no other piece; else it is computed
again there, as in Wijmans et al., "Cut your losses", arXiv 2411.09009, section 4.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

Entropy = Literal["none", "value", "gradient"]
"""Whether entropies are computed, and whether a gradient goes through them."""


@dataclass(frozen=True, kw_only=True)
class LogitForm:
    """What a model does to its output layer's product `x`: `cap * tanh(scale * x / cap)`.

    Attributes:
        scale: a factor.
        cap: a soft cap (Gemma 2, arXiv:2408.00118, section 2); None: `scale * x` it is.
    """

    scale: float = 1.0
    cap: float | None = None

    def of(self, product: Tensor) -> Tensor:
        """Logits, of the same shape; `product` may be changed."""
        if self.scale != 1.0:
            product = product.mul_(self.scale)
        return product if self.cap is None else product.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, logits: Tensor) -> Tensor | float:
        """Of the logits by the product: `scale * (1 - (logits / cap)^2)`."""
        if self.cap is None:
            return self.scale
        return (logits / self.cap).square_().neg_().add_(1.0).mul_(self.scale)


@dataclass(frozen=True, kw_only=True)
class Logits:
    """How logits are made of hidden states.

    Attributes:
        temperature: divides them.
        form: of the model.
        max_bytes: of those in float32 that are held at once; at least one token's are.
        float32: products of hidden states and weight in half precision are summed and kept in
            float32, so that no logit is rounded to half precision.
    """

    temperature: float = 1.0
    form: LogitForm = field(default_factory=LogitForm)
    max_bytes: int = 1 << 29
    float32: bool = True

    def cold(self, logits: Tensor) -> Tensor:
        """Logits divided by the temperature, in place."""
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    def product(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output layer's `[n, V]`, in float32 or float64."""
        precision = _precision(hidden)
        if not self.float32 or hidden.dtype == precision:
            return nn.functional.linear(hidden, weight, bias).to(precision)
        if hidden.is_cuda:
            product = torch.mm(hidden, weight.t(), out_dtype=precision)
        else:
            product = hidden.to(precision) @ weight.to(precision).t()
        return product if bias is None else product.add_(bias)


def token_logprobs(
    hidden: Tensor, head: nn.Linear, target: Tensor, logits: Logits, *, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """Logprob of `target[n]` under `softmax(form(head(hidden[n])) / temperature)`, and the entropy.

    With `p` the softmax and `z` the logits: `d logprob / dz_j = [j = target] - p_j`, and of
    the entropy `H = -sum_j p_j log p_j`: `dH / dz_j = -p_j (log p_j + H)`.

    Args:
        hidden: `[N, H]`, after the last norm.
        head: the output layer: `weight` `[V, H]`, and perhaps `bias` `[V]`.
        target: int64 `[N]`.
        logits: how they are made.
        entropy: `none`, `value` without gradient or `gradient`.

    Returns:
        float32 logprobs `[N]` with gradient, float32 entropies `[N]` in nats or None.
    """
    weight = head.weight
    grad = torch.is_grad_enabled()
    logprobs, entropies = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, head.bias, target, logits, entropy, grad
    )
    return logprobs, entropies if entropy != "none" else None


class _TokenLogprobs(torch.autograd.Function):
    """See `token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        logits: Logits,
        entropy: Entropy,
        grad: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.logits, ctx.entropy = logits, entropy
        ctx.piece = piece = max(1, logits.max_bytes // (4 * weight.shape[0]))
        # The slope of a cap needs logits beside probabilities, so both are computed again.
        keep = grad and len(target) <= piece and logits.form.cap is None
        logprobs = hidden.new_empty(len(target), dtype=_precision(hidden))
        entropies = torch.zeros_like(logprobs)
        kept = None
        for start in range(0, len(target), piece):
            part = slice(start, start + piece)
            cold = logits.cold(logits.form.of(logits.product(hidden[part], weight, bias)))
            logs = cold.log_softmax(-1)
            logprobs[part] = logs.gather(-1, target[part, None])[:, 0]
            if keep or entropy != "none":
                kept = torch.exp(logs, out=cold)  # in the memory of the logits, needed no more
            if kept is not None and entropy != "none":
                # Unlike vecdot, bmm needs no memory for the products.
                entropies[part] = torch.bmm(logs[:, None], kept[:, :, None]).flatten().neg_()
        ctx.save_for_backward(hidden, weight, bias, target, entropies, kept if keep else None)
        if entropy != "gradient":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_logprob: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, entropies, kept = ctx.saved_tensors
        # The chain rule through `logits / temperature`, before there are V numbers a token.
        temperature, form = ctx.logits.temperature, ctx.logits.form
        by_logprob = by_logprob / temperature
        through = by_entropy / temperature if ctx.entropy == "gradient" else None
        sums = _Sums(ctx, hidden, weight, one_piece=kept is not None)
        for start in range(0, len(target), ctx.piece):
            part = slice(start, start + ctx.piece)
            p, slope = kept, form.scale
            if p is None:
                logits = form.of(ctx.logits.product(hidden[part], weight, bias))
                slope = form.slope(logits)
                p = torch.softmax(ctx.logits.cold(logits), -1)
            more = None
            if through is not None:
                # entr(p) is -p log p, and 0 at 0.
                more = torch.special.entr(p).sub_(p * entropies[part, None])
                more *= through[part, None]
            # In place: what is kept serves one backward pass, and autograd refuses a second.
            by_logit = p.mul_(-by_logprob[part, None])
            if more is not None:
                by_logit += more
            by_logit.scatter_add_(-1, target[part, None], by_logprob[part, None])
            if form != LogitForm():
                by_logit *= slope
            sums.add(part, by_logit.to(hidden.dtype))
        return (*sums.result(), None, None, None, None)


class _Sums:
    """Gradients of hidden states, weight and bias, over pieces; None where none is wanted."""

    def __init__(self, ctx: Any, hidden: Tensor, weight: Tensor, *, one_piece: bool) -> None:
        self._hidden, self._weight = hidden, weight
        self._wanted = ctx.needs_input_grad[:3]
        # Added up in float32: in bfloat16 many small pieces would vanish.
        precision = None if one_piece else _precision(weight)
        of_hidden, of_weight, of_bias = self._wanted
        self._of_hidden = torch.empty_like(hidden) if of_hidden else None
        self._of_weight = torch.zeros_like(weight, dtype=precision) if of_weight else None
        rows = weight.shape[0]
        self._of_bias = weight.new_zeros(rows, dtype=_precision(weight)) if of_bias else None

    def add(self, part: slice, by_logit: Tensor) -> None:
        """Count one piece; `by_logit` is `[n, V]`."""
        if self._of_hidden is not None:
            torch.mm(by_logit, self._weight, out=self._of_hidden[part])
        if self._of_weight is not None:
            self._of_weight += by_logit.t() @ self._hidden[part]
        if self._of_bias is not None:
            self._of_bias += by_logit.sum(0)

    def result(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """In the order and type of the inputs."""
        dtype = self._weight.dtype
        of_weight, of_bias = (
            None if one is None else one.to(dtype) for one in (self._of_weight, self._of_bias)
        )
        return self._of_hidden, of_weight, of_bias


def _precision(tensor: Tensor) -> torch.dtype:
    """Float32, or float64 where it is that already."""
    return torch.promote_types(tensor.dtype, torch.float32)
