"""A stage of an acceptance: what it needs, and the function that measures and judges."""

from collections.abc import Callable
from dataclasses import dataclass

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Curve, Figure


class NotTried(Exception):
    """A stage cannot be tried here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a stage that ran.

    Attributes:
        figures: what was measured.
        curves: learning curves.
        problem: what is wrong, in one line; empty: the stage passed.
    """

    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage; it uses public interfaces only.

    Attributes:
        name: on the command line and in the report.
        purpose: what it shows.
        deadline_s: longest that it may take, seconds.
        run: raises `NotTried`, or any error, whose first line becomes the stage's reason.
        gpus: fewest GPUs that it needs.
        services: it needs the running services.
    """

    name: str
    purpose: str
    deadline_s: float
    run: Callable[[Bench, Deadline], Outcome]
    gpus: int = 0
    services: bool = False
