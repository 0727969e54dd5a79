"""Whether training raises the reward: the curves of real runs, of several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from millrace_tools.audit.findings import Finding, Verdict
from services.protocol.run.orchestrator import RunState

TRAINING = "learnable.training"
PAGE = "training.html"
"""The curves, in the report's folder."""
LEAST_STEPS = 6
"""Train steps below which a third of a curve has no spread."""
_CLEAR = 2.0
"""Standard errors of the gain beyond which it is no accident (95 of 100)."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """One run.

    Attributes:
        seed: of its sampling.
        rewards: mean of the batch of each train step.
        state: how it ended.
        detail: the same in words.
    """

    seed: int
    rewards: tuple[float, ...]
    state: RunState
    detail: str = ""


def not_trained() -> Finding:
    """What stands in the report of an audit without `--train-steps`."""
    said = (
        "no model was trained: --train-steps 20 --train-model FOLDER, with a small model that is "
        "paid now and then; or, on a deployment with GPUs, `millrace run` with three seeds"
    )
    return _finding(Verdict.NOT_MEASURED, said)


def training_finding(runs: Sequence[TrainedRun] | str) -> Finding:
    """The verdict of three curves, or why there are none.

    A curve's gain is the mean reward of the last third of its train steps less that of the first
    third, and has the standard error of a difference of two means. Seeds are told apart: a rise
    of their mean counts only where none of them fell.
    """
    if isinstance(runs, str):
        return _finding(Verdict.NOT_MEASURED, f"it could not be trained: {runs}")
    told = "; ".join(_told(one) for one in runs)
    if len({reward for one in runs for reward in one.rewards}) < 2:
        why = next((one.detail for one in runs if one.detail), "all rewards were equal")
        said = f"{told}: it takes a model that is paid for some answers and not for others: {why}"
        return _finding(Verdict.NOT_MEASURED, said)
    if broken := [one for one in runs if len(one.rewards) < LEAST_STEPS]:
        first = broken[0]
        solved = first.state is RunState.FINISHED
        said = f"{told}: seed {first.seed} ended after {len(first.rewards)} steps: {first.detail}"
        return _finding(Verdict.WARN if solved else Verdict.NOT_MEASURED, said)
    ends = [_thirds(one.rewards) for one in runs]
    gains = [fmean(last) - fmean(first) for first, last in ends]
    squares = [sum(variance(third) / len(third) for third in pair) for pair in ends]
    error = sum(squares) ** 0.5 / len(runs)
    gain = fmean(gains)
    said = f"{told}; mean gain {gain:+.3g}, standard error {error:.2g}; curves: {PAGE}"
    if gain > _CLEAR * error and min(gains) > 0:
        return _finding(Verdict.PASS, said)
    if gain < -_CLEAR * error:
        return _finding(Verdict.FAIL, f"training lowers the reward: {said}")
    return _finding(Verdict.WARN, f"no clear rise: more steps may tell; {said}")


def _thirds(rewards: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The first third of a curve, and the last."""
    size = len(rewards) // 3
    return rewards[:size], rewards[-size:]


def _told(run: TrainedRun) -> str:
    if len(run.rewards) < LEAST_STEPS:
        return f"seed {run.seed}: {len(run.rewards)} steps"
    first, last = _thirds(run.rewards)
    steps = f"in {len(run.rewards)} steps"
    return f"seed {run.seed}: reward {fmean(first):.3g}, then {fmean(last):.3g} {steps}"


def _finding(verdict: Verdict, evidence: str) -> Finding:
    question = "Does training raise the reward?"
    return Finding(check=TRAINING, question=question, verdict=verdict, evidence=evidence)
