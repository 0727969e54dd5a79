"""How evenly a mixture's experts are used in a train step, and the loss that evens it out."""

import torch
import torch.distributed as dist
from torch import Tensor

from services.protocol.errors import InvalidInput
from services.trainer.batch.collate import MicroBatch
from services.trainer.experts.routing import Watch
from services.trainer.model.model import Policy
from services.trainer.model.token_logprobs import Entropy

FIELD = "algorithm.router_aux_loss_coef"


def check_balance(policy: Policy, coefficient: float) -> None:
    """Refuse a balancing loss of a model without routers.

    Raises:
        InvalidInput: there is nothing to balance.
    """
    if coefficient and not policy.routing.routers:
        fix = f"A {policy.model_type} has no routers to balance; leave it out."
        raise InvalidInput(FIELD, coefficient, fix)


class ExpertBalance:
    """The routers' choices over the policy's passes of a train step, on this rank."""

    def __init__(self, policy: Policy, coefficient: float, device: torch.device) -> None:
        # Of the passes, which with `offload: all` is not that of the parameters: all ranks must
        # add up on the same device, since that decides which backend a collective runs on.
        self._device = device
        self._policy, self._coefficient = policy, coefficient
        self._counts: Tensor | None = None
        # Entropy and tokens, over routers, and the loss.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._last: Watch | None = None

    def score(
        self, micro: MicroBatch, temperature: float, entropy: Entropy
    ) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of the policy, with its routers counted."""
        scored: tuple[Tensor, Tensor]
        routing, places = self._policy.routing, None
        if not routing.routers:
            scored = self._policy(micro, temperature, entropy)
            return scored
        if not self._policy.packs:
            places = micro.rows.row * micro.rows.longest + micro.rows.place
        elif micro.tree is not None:
            places = micro.tree.at  # a token counts in each row that has it
        with routing.watched(places, keep=self._coefficient > 0) as watch:
            scored = self._policy(micro, temperature, entropy)
        self._last = watch
        if micro.weight.any() or micro.given.any():
            counts = torch.stack(watch.counts).double()
            self._counts = counts if self._counts is None else self._counts + counts
            self._sums[0] += torch.stack(watch.entropies).sum()
            self._sums[1] += sum(watch.tokens)
        return scored

    def loss(self, micro: MicroBatch, tokens: int) -> Tensor | float:
        """What the last pass adds to the loss: the coefficient times its balancing loss.

        A pass counts by its share of the minibatch's trained tokens, so that the losses of all
        passes add up to a mean, whatever a mask leaves out. Ranks that share a pass balance a slice
        of its tokens each. FSDP divides gradients by the number of ranks.

        Args:
            micro: of the last pass.
            tokens: trained ones of the minibatch, over all ranks.
        """
        if not self._coefficient or self._last is None:
            return 0.0
        share = float((micro.weight + micro.given).sum()) / max(tokens, 1)
        share /= self._policy.context_group.size
        loss = self._last.balance_loss()
        self._last = None
        self._sums[2] += share * loss.detach()
        return self._coefficient * share * dist.get_world_size() * loss

    def reduce(self, minibatches: int) -> dict[str, float]:
        """Metrics over all ranks, the same on each; none of a dense model. Collective.

        Args:
            minibatches: of the step; the loss is averaged over them.
        """
        if not self._policy.routing.routers:
            return {}
        shape = torch.tensor(self._counts.shape if self._counts is not None else (0, 0))
        shape = shape.to(self._device)
        dist.all_reduce(shape, op=dist.ReduceOp.MAX)
        counts = self._counts
        if counts is None:
            counts = torch.zeros(*shape.tolist(), dtype=torch.float64, device=self._device)
        dist.all_reduce(counts)
        sums = self._sums.clone()
        dist.all_reduce(sums)
        if not counts.sum():
            return {}
        load = counts / counts.mean(-1, keepdim=True).clamp(min=1e-12)
        metrics = {
            "router_max_load": load.max(-1).values.mean().item(),
            "router_idle_experts": (counts == 0).double().mean().item(),
            "router_entropy": (sums[0] / sums[1]).item(),
        }
        if self._coefficient:
            metrics["router_aux_loss"] = sums[2].item() / minibatches
        return metrics
