"""Whether a model can learn from the tasks: what a given one is paid for several answers each."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, quantiles, variance

from millrace_tools.audit.checks.asked import Asked
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.policy.forwarded_policy import ForwardedPolicy
from millrace_tools.audit.subject import Subject
from services.protocol.run.orchestrator import RunConfig

_LEARNED = 0.95
"""Pass@1 from which on there is hardly anything left to learn."""
_FEW = 0.1
"""Share of tasks with both good and bad answers below which most of the work is for nothing."""
_NOISY, _LOST = 3.0, 1.0
"""Signal to noise below which it is told, and below which the noise is larger."""
HEADROOM, NOISE = "learnable.headroom", "learnable.noise"
_QUESTIONS = {
    HEADROOM: "Is there something left to learn, and something to learn from?",
    "learnable.signal": "Do answers to one task differ in their rewards?",
    "learnable.rewards": "Which rewards are there?",
    "learnable.difficulty": "How hard are the tasks, and how much of a batch has a gradient?",
    "learnable.failures": "Do episodes with this model end in a reward?",
    NOISE: "Are the same answers of a model paid the same again?",
}
LEARNABLE = tuple(_QUESTIONS)


def not_asked() -> Finding:
    """What stands in the report of an audit without a model."""
    said = "no model was asked: --url, and --model as that server calls it"
    return _finding(HEADROOM, Verdict.NOT_MEASURED, said)


def learnable_findings(asked: Asked, run: RunConfig) -> list[Finding]:
    """All checks of rewards of a model's own answers."""
    reasons = [one.reason for one in asked.outcomes if one.reward is None]
    failures = _failures(reasons, len(asked.outcomes))
    if not asked.groups:
        return [_finding(HEADROOM, Verdict.NOT_MEASURED, "no episode has a reward"), failures]
    shares = [fmean(one >= asked.best for one in rewards) for rewards in asked.groups]
    return [
        _headroom(asked, shares),
        _signal(asked.groups),
        _rewards(asked.groups),
        _difficulty(asked.groups, shares, run),
        failures,
    ]


async def noise_finding(subject: Subject, policy: ForwardedPolicy, asked: Asked) -> Finding:
    """Plays the model's episodes again with the answers that it gave, without asking it.

    The advantage of an answer is its reward less the mean of its group: a reward that changes
    between two plays of the same answers is noise in it of the same size.
    """
    tasks = [task for task in asked.tasks for _ in range(asked.samples)]
    scripts = [asked.exchanges[one.episode] for one in asked.outcomes]
    again = await subject.play_all(tasks, scripts)
    pairs = [
        (one.reward, other.reward)
        for one, other in zip(asked.outcomes, again, strict=True)
        if one.reward is not None and other.reward is not None
    ]
    if not pairs or all(len(rewards) < 2 for rewards in asked.groups):
        said = "no episode has a reward twice, or no task two answers: --samples"
        return _finding(NOISE, Verdict.NOT_MEASURED, said)
    spread = fmean(variance(rewards) for rewards in asked.groups if len(rewards) > 1)
    noise = fmean((one - other) ** 2 for one, other in pairs) / 2
    said = f"{sum(one != other for one, other in pairs)} of {len(pairs)} episodes differ"
    if not noise:
        return _finding(
            NOISE, Verdict.PASS, f"{said}; rewards of a task spread by {spread**0.5:.3g}"
        )
    ratio = (max(0.0, spread - noise) / noise) ** 0.5
    said += f": advantages have a signal to noise of {ratio:.2g}"
    verdict = Verdict.FAIL if ratio < _LOST else Verdict.WARN if ratio < _NOISY else Verdict.PASS
    return _finding(NOISE, verdict, said)


def _headroom(asked: Asked, shares: Sequence[float]) -> Finding:
    """Pass@1 and pass@k (Chen et al. 2021, section 2.1, with as many samples as k)."""
    once, ever = fmean(shares), fmean(share > 0 for share in shares)
    mean = fmean(fmean(rewards) for rewards in asked.groups)
    said = f"pass@1 {once:.0%}, pass@{asked.samples} {ever:.0%}, mean reward {mean:.3g}"
    said += f" of {asked.best:g}"
    if max(max(rewards) for rewards in asked.groups) <= 0:
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


def _rewards(groups: Sequence[Sequence[float]]) -> Finding:
    """The distribution, and how many rewards are ties."""
    every = [reward for rewards in groups for reward in rewards]
    low, middle, high = quantiles(every, n=4) if len(every) > 1 else every * 3
    value, count = Counter(every).most_common(1)[0]
    said = (
        f"{min(every):.3g} to {max(every):.3g}, quartiles {low:.3g}, {middle:.3g} and {high:.3g}; "
        f"{len(set(every))} different ones, {count / len(every):.0%} are {value:.3g}"
    )
    return _finding("learnable.rewards", Verdict.PASS, said)


def _difficulty(
    groups: Sequence[Sequence[float]], shares: Sequence[float], run: RunConfig
) -> Finding:
    """Tasks by their share of right answers, and groups of the run whose rewards would differ.

    Those of a group of n are all equal with the chance that n draws from the task's rewards are.
    """
    bins = [
        f"{sum(low < share <= high for share in shares)} {name}"
        for low, high, name in (
            (-1.0, 0.0, "never"),
            (0.0, 0.25, "up to a quarter"),
            (0.25, 0.75, "up to three quarters"),
            (0.75, 0.999, "mostly"),
            (0.999, 1.0, "always"),
        )
    ]
    size = run.group_size
    equal = fmean(
        sum((count / len(rewards)) ** size for count in Counter(rewards).values())
        for rewards in groups
    )
    mixed = run.batch_groups * (1 - equal)
    said = (
        f"right: {', '.join(bins)}; of a batch of {run.batch_groups} groups of {size} about "
        f"{mixed:.2g} have rewards that differ"
    )
    few = equal > 1 - _FEW
    return _finding("learnable.difficulty", Verdict.WARN if few else Verdict.PASS, said)


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
