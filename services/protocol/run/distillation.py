"""The `algorithm.distillation` of a run file: a teacher beside the reward."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel

POLICY = "policy"
"""The teacher that is the policy itself, shown more than the policy was."""


class DistillationConfig(StrictModel):
    """A teacher that says how likely it finds each token that the policy sampled.

    On-policy distillation: GKD (Agarwal et al., arXiv 2306.13649) on the policy's own answers.
    With `teacher: policy` self-distillation from context that the policy lacks, such as a
    demonstration (SDFT, Shenfeld et al., arXiv 2601.19897) or the solution (OPSD, Zhao et al.,
    arXiv 2601.18734).

    Attributes:
        teacher: its name among the deployment's `orchestrator.teachers`, or `policy`: the policy
            itself, with the `context` that it did not see when it answered.
        coefficient: weight of the teacher's advantage.
        rewards: weight of the rewards' advantage; 0: rewards are measured, but not learned from.
        divergence: the divergence between policy and teacher that training reduces: `reverse_kl`
            or `jensen_shannon`.
        beta: for `jensen_shannon` only: weight of the teacher in the mixture; near 1 it is the
            reverse divergence, near 0 the forward one.
        context: text that the teacher alone reads at the end of the last message, with `{NAME}`
            for the task's `data.NAME`.
    """

    teacher: str = Field(min_length=1)
    coefficient: float = Field(default=1.0, gt=0)
    rewards: float = Field(default=0.0, ge=0)
    divergence: Literal["reverse_kl", "jensen_shannon"] = "reverse_kl"
    beta: float = Field(default=0.5, gt=0, lt=1)
    context: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _refuse_what_would_do_nothing(self) -> Self:
        if self.beta != 0.5 and self.divergence != "jensen_shannon":
            raise ValueError("beta needs divergence: jensen_shannon")
        return self

    @model_validator(mode="after")
    def _refuse_a_teacher_that_knows_nothing_more(self) -> Self:
        if self.teacher == POLICY and self.context is None:
            raise ValueError("the policy can teach itself only what a context tells it: set one")
        return self
