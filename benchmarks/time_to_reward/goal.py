"""The goal of both sides of `time_to_reward`, and their results."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Goal:
    """When a side stops.

    Attributes:
        pass_rate: of the held-out tasks, greedy.
        every: train steps between two evaluations.
        steps: most train steps.
        seconds: longest training, start-up left out.
    """

    pass_rate: float
    every: int
    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Side:
    """How a side did.

    Attributes:
        reached: whether the pass rate was reached within the limits.
        steps: train steps until then.
        train_s: wall seconds from the start of training.
        train_cpu_s: CPU seconds of all its processes in that time.
        startup_s: wall seconds before that: processes, imports, models.
        startup_cpu_s: CPU seconds before that.
        rates: train steps done and pass rate of each evaluation.
    """

    reached: bool
    steps: int
    train_s: float
    train_cpu_s: float
    startup_s: float
    startup_cpu_s: float
    rates: list[tuple[int, float]]

    @property
    def whole_s(self) -> float:
        """Wall seconds with start-up."""
        return self.startup_s + self.train_s

    @property
    def step_s(self) -> float:
        """Wall seconds of a train step."""
        return self.train_s / max(self.steps, 1)
