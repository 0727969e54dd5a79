"""What is paid: worthless answers, tricks, words of the task, and what is right."""

from collections.abc import Sequence

from millrace_tools.audit.answers import Candidate, always, words_of, worthless
from millrace_tools.audit.around.surroundings import apart
from millrace_tools.audit.checks.played import Played, play_each, some, unrewarded
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.subject import Subject
from millrace_tools.audit.tricks import tricks
from millrace_tools.grade.code_job import reference_of
from services.protocol.run.task import Task

REWARD = ("reward.worthless", "reward.gameable", "reward.leak", "reward.reference")
_EARNED = 0.1
"""Share of the best reward that a worthless answer may earn on average without a word."""
_ALWAYS, _OFTEN = 0.9, 0.5


async def reward_findings(subject: Subject, tasks: Sequence[Task], seed: int) -> list[Finding]:
    """All checks of what is paid."""
    nothing = await play_each(subject, tasks, lambda task: worthless(task, seed))
    right = await play_each(subject, [task for task in tasks if _reference(task)], _references)
    async with apart(subject):
        cheats = await play_each(subject, tasks, tricks)
    words = await play_each(subject, tasks, _words)
    best = max([1.0, *(reward for one in [*nothing, *right] for reward in one.rewards)])
    return [
        _unpaid(
            "reward.worthless", "Is an answer that is worth nothing paid nothing?", nothing, best
        ),
        _unpaid("reward.gameable", "Are known tricks paid nothing?", cheats, best),
        _leak(words, best),
        _right(right, best),
    ]


def _unpaid(check: str, question: str, played: Sequence[Played], best: float) -> Finding:
    """Fails if any of them is paid on any task; warns if one earns a little on average."""
    if (reason := unrewarded(played)) is not None:
        return Finding(
            check=check, question=question, verdict=Verdict.NOT_MEASURED, evidence=reason
        )
    paid = {one.name: ids for one in played if (ids := one.paid(best))}
    if paid:
        said = "; ".join(f"'{name}' is paid on {some(ids)}" for name, ids in paid.items())
        return Finding(check=check, question=question, verdict=Verdict.FAIL, evidence=said)
    earned = max(played, key=lambda one: one.mean)
    verdict = Verdict.WARN if earned.mean > _EARNED * best else Verdict.PASS
    said = f"the most that one earns on average is {earned.mean:.3g} of {best:g}: '{earned.name}'"
    return Finding(check=check, question=question, verdict=verdict, evidence=said)


def _leak(played: Sequence[Played], best: float) -> Finding:
    check, question = "reward.leak", "Is the answer not in the task?"
    if (reason := unrewarded(played)) is not None:
        return Finding(
            check=check, question=question, verdict=Verdict.NOT_MEASURED, evidence=reason
        )
    shares = {one.name: len(one.paid(best)) / len(one.tasks) for one in played}
    place = max(shares, key=lambda name: shares[name])
    hit = {task for one in played for task in one.paid(best)}
    share = len(hit) / max(len(one.tasks) for one in played)
    if shares[place] >= _ALWAYS:
        verdict, said = Verdict.FAIL, f"{place} of the task is paid on {shares[place]:.0%} of them"
    elif share >= _OFTEN:
        verdict = Verdict.WARN
        said = f"some word of the task is paid on {share:.0%} of them; none at the same place"
    else:
        verdict, said = Verdict.PASS, f"a word of the task is paid on {share:.0%} of them"
    return Finding(check=check, question=question, verdict=verdict, evidence=said)


def _right(played: Sequence[Played], best: float) -> Finding:
    check, question = "reward.reference", "Is the right answer paid?"
    if not played:
        said = "no grader of these tasks has a `reference`"
        return Finding(check=check, question=question, verdict=Verdict.NOT_MEASURED, evidence=said)
    (one,) = played
    wrong = sorted({task.task_id for task in one.tasks} - set(one.paid(best)))
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    said = f"not on {some(wrong)}" if wrong else f"on all {len(one.tasks)} tasks that have one"
    return Finding(check=check, question=question, verdict=verdict, evidence=said)


def _reference(task: Task) -> str | None:
    return None if task.grader is None else reference_of(task.grader)


def _references(task: Task) -> list[Candidate]:
    return [Candidate("reference", always(_reference(task) or ""))]


def _words(task: Task) -> list[Candidate]:
    return [Candidate(place, always(word)) for place, word in words_of(task).items()]
