"""The `algorithm.kl` of a run file: what holds the policy near a reference model."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel


class KlConfig(StrictModel):
    """The penalty that holds the policy near a reference model.

    Attributes:
        coefficient: how much a nat costs; 0 has no penalty and loads no reference, and goes with
            no other of these keys.
        estimator: `k1`, `k2` or `k3`, see `docs/algorithms.md`.
        where: `loss` adds it to the loss of each token, `reward` takes it from the reward.
        weighted: for `where: loss` only: multiply the penalty of each token by its ratio
            current/behaviour, gradient included.
        aggregation: for `where: loss` only: the penalty's own mean, over all tokens
            (`token_mean`) or over each answer first (`sequence_mean`); None: as the loss.
        refresh_steps: every so many train steps the reference becomes a copy of the policy
            (ProRL, arXiv 2505.24864, section 3.2); not with `trainer.lora`. None: it stays
            `trainer.model`, also in a run that branches off another one.
        refresh_mix: share of the policy in it then, the rest being the reference as it was: a
            moving average (TR-DPO's soft update, arXiv 2404.09656, section 3); 1 for a copy.
    """

    coefficient: float = Field(default=0.0, ge=0)
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"
    weighted: bool = False
    aggregation: Literal["token_mean", "sequence_mean"] | None = None
    refresh_steps: int | None = Field(default=None, ge=1)
    refresh_mix: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _refuse_what_would_not_hold_it(self) -> Self:
        of_penalty = self.estimator, self.where, self.weighted, self.aggregation
        if not self.coefficient and of_penalty != ("k3", "loss", False, None):
            raise ValueError(
                "estimator, where, weighted and aggregation need a coefficient above 0: else there "
                "is no penalty"
            )
        if (self.weighted or self.aggregation) and self.where != "loss":
            raise ValueError("weighted and aggregation need where: loss")
        if self.refresh_steps is not None and not self.coefficient:
            raise ValueError("refresh_steps needs a coefficient above 0: else nothing refers to it")
        if self.refresh_mix != 1 and self.refresh_steps is None:
            raise ValueError("refresh_mix needs refresh_steps, 1 for an average of every step")
        if of_penalty[:3] == ("k1", "loss", False):
            raise ValueError(
                "the gradient of k1 in the loss is zero in expectation; use k2 or k3, "
                "weighted: true, or where: reward"
            )
        return self

    @property
    def in_loss(self) -> bool:
        """There is a penalty, and it belongs to the loss."""
        return self.coefficient > 0 and self.where == "loss"

    @property
    def in_reward(self) -> bool:
        """There is a penalty, and it belongs to the reward."""
        return self.coefficient > 0 and self.where == "reward"
