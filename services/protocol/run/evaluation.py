"""Held-out sets: how a run measures them, and what an evaluation found."""

from typing import Self

from pydantic import BaseModel, Field, model_validator

from services.protocol.strict import StrictModel

DEFAULT_SET = "heldout"
"""The set of held-out tasks whose source names none."""


class EvaluationSet(StrictModel):
    """The plan for one held-out set; keys that are left out are as in `EvaluationConfig`.

    Attributes:
        tasks: how many tasks of the set.
        every: also after every so many train steps.
        samples: answers to each task.
        temperature: of these answers.
    """

    tasks: int | None = Field(default=None, ge=1)
    every: int | None = Field(default=None, ge=0)
    samples: int | None = Field(default=None, ge=1, le=256)
    temperature: float | None = Field(default=None, ge=0, le=2)


class EvaluationConfig(StrictModel):
    """Measurements on held-out tasks, before and after the run, and beside it.

    Attributes:
        tasks: how many tasks of a set; all of them when there are fewer.
        every: also after every so many train steps, 0 for never.
        samples: answers to each task.
        temperature: of these answers; 0 is greedy, and then one answer says all.
        sets: other values for a held-out set, by its name (`tasks.evaluation_set`).
    """

    tasks: int = Field(default=100, ge=1)
    every: int = Field(default=0, ge=0)
    samples: int = Field(default=1, ge=1, le=256)
    temperature: float = Field(default=0.0, ge=0, le=2)
    sets: dict[str, EvaluationSet] = Field(default={})

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        for name in ("", *self.sets):
            plan = self.of(name)
            if plan.samples > 1 and plan.temperature == 0:
                where = f"sets.{name}: " if name else ""
                raise ValueError(
                    f"{where}{plan.samples} greedy answers are the same one; give a temperature"
                )
        return self

    def of(self, name: str) -> "EvaluationConfig":
        """The plan for the set of this name."""
        own = self.sets.get(name, EvaluationSet()).model_dump(exclude_none=True)
        return self.model_copy(update={**own, "sets": {}})


class Evaluation(BaseModel):
    """Results of the policy on a held-out set.

    An answer passes if its reward is 1 or more. A task counts towards pass@k if at least k of
    its answers were graded; the others are infrastructure failures, never wrong answers.

    Attributes:
        name: of the set.
        step: train steps done when it began.
        tasks: tasks asked.
        samples: answers asked for to each.
        temperature: of these answers.
        graded: tasks with at least one graded answer.
        answers: graded answers.
        pass_at: the mean over tasks of pass@k, by k: the powers of 2 up to `samples`, and
            `samples`; without what could not be measured.
        reward: avg@k: the mean reward of a task's graded answers, averaged over tasks; None
            when there is none.
        oldest_version: smallest policy version among the answers' tokens, None without any.
        newest_version: largest one; above the oldest if training went on meanwhile.
        tokens: response tokens sampled.
        seconds: how long it took.
        problem: why answers are missing, empty if none is.
    """

    name: str
    step: int
    tasks: int
    samples: int
    temperature: float
    graded: int
    answers: int
    pass_at: dict[int, float]
    reward: float | None
    oldest_version: int | None
    newest_version: int | None
    tokens: int
    seconds: float
    problem: str = ""

    @property
    def pass_rate(self) -> float | None:
        """pass@1; None when nothing could be graded."""
        return self.pass_at.get(1)
