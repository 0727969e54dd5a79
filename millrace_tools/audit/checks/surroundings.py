"""What becomes of rewards when the network, a program or a grader fails around an episode."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psutil

from millrace_tools.audit.answers import Candidate
from millrace_tools.audit.around.surroundings import (
    with_failing_graders,
    with_hanging_graders,
    without_network,
)
from millrace_tools.audit.checks.played import some
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.policy.scripted_policy import Script
from millrace_tools.audit.subject import Outcome, Subject
from services.protocol.reward.grader import AnyGrader, HttpGrader, PythonGrader, WeightedGrader
from services.protocol.run.task import OUTSIDE, Task

_NETWORK, _PROGRAMS, _GRADER = "reward.network", "reward.programs", "reward.grader"
SURROUNDINGS = (_NETWORK, _PROGRAMS, _GRADER)
_HANG_S = 0.5
_QUESTIONS = {
    _NETWORK: "Is a network that fails no reward?",
    _PROGRAMS: "Are servers and tools that die in mid-episode no reward?",
    _GRADER: "Is a grader that fails no reward?",
}


async def surrounding_findings(
    subject: Subject, policy_url: str, tasks: Sequence[Task], known: Sequence[Candidate]
) -> list[Finding]:
    """All three, with the same answers before the failure and during it."""
    scripts = [one.script for one in known]
    before = await subject.play_all(tasks, scripts)
    graded = any(name for task in tasks for name in _of_user(task.grader))
    async with without_network(subject, policy_url, graded=graded) as felt:
        cut = [_at_first_call(one, lambda: _break(subject)) for one in scripts]
        alone = await subject.play_all(tasks, cut)
        network = _finding(_NETWORK, tasks, before, alone, felt.count, "connections were refused")
    return [
        network,
        await _programs(subject, tasks, scripts, before),
        await _grader(subject, tasks, scripts, before),
    ]


async def _programs(
    subject: Subject, tasks: Sequence[Task], scripts: Sequence[Script], before: Sequence[Outcome]
) -> Finding:
    own = [place for place, one in enumerate(tasks) if one.environment not in (None, OUTSIDE)]
    killed: list[int] = []
    played = await subject.play_all(
        [tasks[place] for place in own],
        [_at_first_call(scripts[place], lambda: killed.extend(_kill(subject))) for place in own],
    )
    await subject.restart()
    pairs = [tasks[place] for place in own], [before[place] for place in own]
    return _finding(_PROGRAMS, *pairs, played, len(killed), "programs were killed")


async def _grader(
    subject: Subject, tasks: Sequence[Task], scripts: Sequence[Script], before: Sequence[Outcome]
) -> Finding:
    own = [place for place, one in enumerate(tasks) if any(_of_user(one.grader))]
    names = {name for place in own for name in _of_user(tasks[place].grader)}
    if not own:
        return _found(_GRADER, Verdict.NOT_MEASURED, "no grader of these tasks is the user's own")
    played = [tasks[place] for place in own]
    known = [scripts[place] for place in own]
    async with with_failing_graders(subject, names):
        failing = await subject.play_all(played, known)
    async with with_hanging_graders(subject, names):
        hanging = await subject.play_all([_impatient(one) for one in played], known)
    paid = [
        f"{task.task_id}, whose grader {how}: {one.reward:g}"
        for how, outcomes in (("raised", failing), ("hung", hanging))
        for task, one in zip(played, outcomes, strict=True)
        if one.reward is not None
    ]
    if paid:
        fix = "give the grader a `reference`, or `on_failure: null`"
        return _found(_GRADER, Verdict.FAIL, f"a failure became a reward: {some(paid)}; {fix}")
    said = f"{len(failing)} raised and {len(hanging)} hung, and have no reward"
    return _found(_GRADER, Verdict.PASS, said)


def _impatient(task: Task) -> Task:
    """The task with short limits of its graders: what a hang is worth does not depend on them."""

    def short(grader: AnyGrader) -> AnyGrader:
        if isinstance(grader, WeightedGrader):
            parts = [one.model_copy(update={"grader": short(one.grader)}) for one in grader.parts]
            return grader.model_copy(update={"parts": parts})
        if isinstance(grader, PythonGrader | HttpGrader):
            return grader.model_copy(update={"timeout_s": _HANG_S})
        return grader

    assert task.grader is not None, "tasks with a grader of the user's own"
    return task.model_copy(update={"grader": short(task.grader)})


def _finding(
    check: str,
    tasks: Sequence[Task],
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    felt: int,
    what: str,
) -> Finding:
    """An episode that goes on without what failed must be paid the same, or nothing at all."""
    triples = list(zip(tasks, before, after, strict=True))
    moved = [
        f"{task.task_id}: {one.reward:g}, then {other.reward:g}"
        for task, one, other in triples
        if one.reward is not None and other.reward is not None and one.reward != other.reward
    ]
    if not felt:
        return _found(check, Verdict.NOT_MEASURED, f"no {what}: no episode needs any that is seen")
    if moved:
        said = f"{felt} {what}: the failure became another reward: {some(moved)}"
        return _found(check, Verdict.FAIL, said)
    kept = [one.reward for _, one, other in triples if None not in (one.reward, other.reward)]
    if kept and not any(kept):
        said = f"{felt} {what}; rewards are 0 as before: right answers would tell, by --answers"
        return _found(check, Verdict.WARN, said)
    lost = sum(one.reward is None for one in after)
    return _found(check, Verdict.PASS, f"{felt} {what}; {lost} episodes have no reward")


def _at_first_call(script: Script, do: Callable[[], None]) -> Script:
    done: list[bool] = []

    def answer(messages: Sequence[dict[str, Any]]) -> str:
        if not done:
            done.append(True)
            do()
        return script(messages)

    return answer


def _break(subject: Subject) -> None:
    for worker in subject.processes():
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGUSR1)


def _kill(subject: Subject) -> Iterator[int]:
    """Whatever the environments' processes have started."""
    for worker in subject.processes():
        with suppress(psutil.Error):
            for one in psutil.Process(worker).children(recursive=True):
                with suppress(psutil.Error):
                    one.kill()
                    yield one.pid


def _of_user(grader: AnyGrader | None) -> Iterator[str]:
    """Names of the graders that a user has registered."""
    parts = [one.grader for one in grader.parts] if isinstance(grader, WeightedGrader) else [grader]
    for one in parts:
        if isinstance(one, PythonGrader | HttpGrader):
            yield one.name


def _found(check: str, verdict: Verdict, evidence: str) -> Finding:
    question = _QUESTIONS[check]
    return Finding(check=check, question=question, verdict=verdict, evidence=evidence)
