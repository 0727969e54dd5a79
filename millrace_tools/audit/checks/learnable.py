"""Whether a model can learn from the tasks: what a given one is paid for several answers each."""

from collections.abc import Sequence
from statistics import fmean

from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.subject import Subject
from services.protocol.run.task import Task

_LEARNED = 0.95
"""Pass@1 from which on there is hardly anything left to learn."""
_FEW = 0.1
"""Share of tasks with both good and bad answers below which most of the work is for nothing."""
_PASSED = 1.0
HEADROOM = "learnable.headroom"
_QUESTIONS = {
    HEADROOM: "Is there something left to learn, and something to learn from?",
    "learnable.signal": "Do answers to one task differ in their rewards?",
    "learnable.failures": "Do episodes with this model end in a reward?",
}


def not_asked() -> Finding:
    """What stands in the report of an audit without a model."""
    said = "no model was asked: --url, and --model as that server calls it"
    return _finding(HEADROOM, Verdict.NOT_MEASURED, said)


async def learnable_findings(
    subject: Subject, tasks: Sequence[Task], samples: int
) -> list[Finding]:
    """All checks of a model's own answers, `samples` of each task."""
    chosen = [task for task in tasks for _ in range(samples)]
    played = await subject.play_all(chosen, [None] * len(chosen))
    groups = [
        [one.reward for one in played[first : first + samples] if one.reward is not None]
        for first in range(0, len(played), samples)
    ]
    reasons = [one.reason for one in played if one.reward is None]
    groups = [rewards for rewards in groups if rewards]
    failures = _failures(reasons, len(played))
    if not groups:
        return [_finding(HEADROOM, Verdict.NOT_MEASURED, "no episode has a reward"), failures]
    return [_headroom(groups, samples), _signal(groups), failures]


def _headroom(groups: Sequence[Sequence[float]], samples: int) -> Finding:
    """Pass@1 and pass@k (Chen et al. 2021, section 2.1, with as many samples as k)."""
    best = max(_PASSED, *(max(rewards) for rewards in groups))
    passed = [[reward >= best for reward in rewards] for rewards in groups]
    once = fmean(fmean(rewards) for rewards in passed)
    ever = fmean(any(rewards) for rewards in passed)
    mean = fmean(fmean(rewards) for rewards in groups)
    said = f"pass@1 {once:.0%}, pass@{samples} {ever:.0%}, mean reward {mean:.3g} of {best:g}"
    if max(max(rewards) for rewards in groups) <= 0:
        return _finding(HEADROOM, Verdict.FAIL, f"{said}: no answer is paid anything")
    return _finding(HEADROOM, Verdict.WARN if once > _LEARNED else Verdict.PASS, said)


def _signal(groups: Sequence[Sequence[float]]) -> Finding:
    mixed = sum(len(set(rewards)) > 1 for rewards in groups)
    never = sum(set(rewards) == {0.0} for rewards in groups)
    said = (
        f"on {mixed} of {len(groups)} tasks; {never} are never paid and "
        f"{len(groups) - mixed - never} always the same"
    )
    share = mixed / len(groups)
    verdict = Verdict.FAIL if not mixed else Verdict.WARN if share < _FEW else Verdict.PASS
    return _finding("learnable.signal", verdict, said)


def _failures(reasons: Sequence[str], episodes: int) -> Finding:
    share = len(reasons) / episodes
    said = f"{len(reasons)} of {episodes} failed"
    if reasons:
        said += f", as in: {reasons[0]}"
    verdict = Verdict.FAIL if share > 0.5 else Verdict.WARN if reasons else Verdict.PASS
    return _finding("learnable.failures", verdict, said)


def _finding(check: str, verdict: Verdict, evidence: str) -> Finding:
    question = _QUESTIONS[check]
    return Finding(check=check, question=question, verdict=verdict, evidence=evidence)
