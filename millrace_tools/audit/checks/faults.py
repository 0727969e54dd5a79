"""What becomes of rewards when the environment's process is stopped for a while, or killed."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from millrace_tools.audit.answers import Candidate
from millrace_tools.audit.checks.played import some
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.policy.scripted_policy import Script
from millrace_tools.audit.subject import Outcome, Subject
from services.protocol.run.task import OUTSIDE, Task

FAULTS = "operations.faults"
_QUESTION = (
    "Are rewards the same when the environment's process hangs or is killed, and after that?"
)
_HANGS_S = 2.0


async def fault_finding(
    subject: Subject, tasks: Sequence[Task], known: Sequence[Candidate]
) -> Finding:
    """Plays known answers while the process hangs, while it is killed, and after that."""
    pairs = [
        (task, one.script)
        for task, one in zip(tasks, known, strict=True)
        if task.environment not in (None, OUTSIDE)
    ]
    if not pairs:
        return _finding(Verdict.NOT_MEASURED, "no environment runs in a process of ours")
    own, scripts = [task for task, _ in pairs], [script for _, script in pairs]
    before = await subject.play_all(own, scripts)
    stop, kill = _Fault(subject, signal.SIGSTOP), _Fault(subject, signal.SIGKILL)
    hung = await subject.play_all(own, [stop.then(script) for script in scripts])
    if moved := _moved(own, before, hung):
        return _finding(Verdict.FAIL, f"it hung for {_HANGS_S:g} s; {some(moved)}")
    killed = await subject.play_all(own, [kill.then(script) for script in scripts])
    after = await subject.play_all(own, scripts)
    lost = sum(one.reward is None for one in killed)
    if moved := [*_moved(own, before, killed), *_moved(own, before, after)]:
        return _finding(Verdict.FAIL, f"{lost} episodes were killed; {some(moved)}")
    pairs_after = zip(own, before, after, strict=True)
    gone = [
        f"{task.task_id}: {later.reason}"
        for task, one, later in pairs_after
        if one.reward is not None and later.reward is None
    ]
    if gone:
        return _finding(Verdict.FAIL, f"episodes fail since then, as in {gone[0]}")
    if not kill.done:
        return _finding(Verdict.NOT_MEASURED, "no episode made a call, in which to kill it")
    return _finding(Verdict.PASS, f"{lost} episodes were killed, and had no reward")


class _Fault:
    """Sends a signal to the processes of environments in the first call that it sees."""

    def __init__(self, subject: Subject, number: signal.Signals) -> None:
        self._subject, self._number, self.done = subject, number, False

    def then(self, script: Script) -> Script:
        """A script that answers as the given one."""

        def answer(messages: Sequence[dict[str, Any]]) -> str:
            if not self.done:
                self.done = True
                for worker in self._subject.processes():
                    _signal(worker, self._number)
                    if self._number is signal.SIGSTOP:
                        loop = asyncio.get_running_loop()
                        loop.call_later(_HANGS_S, _signal, worker, signal.SIGCONT)
            return script(messages)

        return answer


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _moved(tasks: Sequence[Task], first: Sequence[Outcome], again: Sequence[Outcome]) -> list[str]:
    """Rewards that differ; an episode that failed has none."""
    return [
        f"{task.task_id}: {one.reward:g}, then {other.reward:g}"
        for task, one, other in zip(tasks, first, again, strict=True)
        if one.reward is not None and other.reward is not None and one.reward != other.reward
    ]


def _finding(verdict: Verdict, evidence: str) -> Finding:
    return Finding(check=FAULTS, question=_QUESTION, verdict=verdict, evidence=evidence)
