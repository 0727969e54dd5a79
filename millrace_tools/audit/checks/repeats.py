"""Whether the same answers are paid the same: again, in another order and process, under load."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from millrace_tools.audit.answers import Candidate, refusing
from millrace_tools.audit.checks.played import some
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.subject import Outcome, Subject
from services.protocol.run.task import Task

_FAILURES = "operations.failures"
REPEATS = ("reward.reproducible", "reward.load", "reward.failure", _FAILURES)
_BURN = "while True: pass"
_COPIES = 4
"""How often each task is played at once under load."""


async def repeat_findings(
    subject: Subject, tasks: Sequence[Task], known: Sequence[Candidate]
) -> list[Finding]:
    """All checks of repeated answers; `known` are answers by task, such as references."""
    scripts = [one.script for one in known]
    # One after the other: what a busy machine changes shall not be there already.
    first = [await subject.play(*pair) for pair in zip(tasks, scripts, strict=True)]
    await subject.restart()
    turned = await subject.play_all(tasks[::-1], scripts[::-1])
    with _busy():
        loaded = await subject.play_all([*tasks] * _COPIES, [*scripts] * _COPIES)
    calling = [task for task in tasks if task.environment is not None]
    broken = await subject.play_all(calling, [refusing()] * len(calling))
    return [
        _same("reward.reproducible", _AGAIN, tasks, first, turned[::-1]),
        _same("reward.load", _LOAD, tasks, first * _COPIES, loaded),
        _no_reward(calling, broken),
        _failures(first),
    ]


_AGAIN = "Is the same answer paid the same in another process and another order?"
_LOAD = "Is the same answer paid the same on a busy machine?"


def _same(
    check: str,
    question: str,
    tasks: Sequence[Task],
    first: Sequence[Outcome],
    again: Sequence[Outcome],
) -> Finding:
    """An episode that fails is no other reward: failures are counted, and never trained."""
    moved = {
        tasks[place % len(tasks)].task_id: (one.reward, other.reward)
        for place, (one, other) in enumerate(zip(first, again, strict=True))
        if None not in (one.reward, other.reward) and one.reward != other.reward
    }
    lost = [one.reason for one in again if one.reward is None]
    if moved:
        shown = [f"{task}: {before:g}, then {after:g}" for task, (before, after) in moved.items()]
        verdict, said = Verdict.FAIL, some(shown)
    elif lost and all(one.reward is not None for one in first):
        verdict, said = Verdict.WARN, f"{len(lost)} of {len(again)} failed, as in: {lost[0]}"
    elif len(lost) == len(again):
        verdict, said = Verdict.NOT_MEASURED, f"no episode has a reward, as in: {lost[0]}"
    else:
        verdict, said = Verdict.PASS, f"{len(again)} episodes"
    return Finding(check=check, question=question, verdict=verdict, evidence=said)


def _no_reward(tasks: Sequence[Task], broken: Sequence[Outcome]) -> Finding:
    check, question = "reward.failure", "Is a failure of the policy's server no reward?"
    if not tasks:
        said = "no environment: the run asks for the answers itself"
        return Finding(check=check, question=question, verdict=Verdict.NOT_MEASURED, evidence=said)
    paid = [
        f"{task.task_id}: {one.reward:g}"
        for task, one in zip(tasks, broken, strict=True)
        if one.reward is not None and one.calls
    ]
    verdict = Verdict.FAIL if paid else Verdict.PASS
    said = f"a call that failed became a reward: {some(paid)}" if paid else "every episode failed"
    return Finding(check=check, question=question, verdict=verdict, evidence=said)


def _failures(first: Sequence[Outcome]) -> Finding:
    """An audit in which nothing works has found nothing, and shall not look as if all were well."""
    question = "Do episodes with known answers end in a reward?"
    reasons = [one.reason for one in first if one.reward is None]
    said = f"{len(reasons)} of {len(first)} failed" + (f", as in: {reasons[0]}" if reasons else "")
    every = len(reasons) == len(first)
    verdict = Verdict.FAIL if every else Verdict.WARN if reasons else Verdict.PASS
    return Finding(check=_FAILURES, question=question, verdict=verdict, evidence=said)


@contextmanager
def _busy() -> Iterator[None]:
    """Two programs that compute for each core."""
    cores = len(os.sched_getaffinity(0))
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(2 * cores)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
