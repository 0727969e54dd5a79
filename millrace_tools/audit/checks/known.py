"""Answers that the user knows to be good or bad, and what they are paid."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from millrace_tools.audit.answers import turns
from millrace_tools.audit.checks.played import is_paid, some
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.subject import Subject
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from services.protocol.strict import StrictModel
from services.protocol.text_file import read_text_file

Answer = str | list[str]
_GOOD, _BAD = "reward.good", "reward.bad"
KNOWN = (_GOOD, _BAD)
_QUESTIONS = {
    _GOOD: "Are the answers paid that you know to be good?",
    _BAD: "Are the answers paid nothing that you know to be bad?",
}


class LabelledAnswers(StrictModel):
    """A line of the file of `--answers`.

    Attributes:
        task_id: of the run's tasks.
        good: answers that must earn at least half of the best reward; of an episode with several
            calls each is a list of texts, one a call, the last of which is said again.
        bad: answers that must not.
    """

    task_id: str
    good: list[Answer] = Field(default=[])
    bad: list[Answer] = Field(default=[])


def read_labelled_answers(path: str, tasks: Mapping[str, Task]) -> list[LabelledAnswers]:
    """The lines of the file.

    Raises:
        InvalidInput: naming the line, and its task if the run has no such one or never plays it.
    """
    found = []
    for number, line in enumerate(read_text_file(path, field="--answers").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            data: Any = json.loads(line)
        except ValueError as error:
            raise InvalidInput(where, line[:80], f"It is not JSON: {error}.") from None
        one = LabelledAnswers.from_data(data, source=where)
        if one.task_id not in tasks:
            raise InvalidInput(f"{where}: task_id", one.task_id, "The run has no such task.")
        if tasks[one.task_id].given:
            fix = "The run learns from its given answer, and plays it never: leave it out."
            raise InvalidInput(f"{where}: task_id", one.task_id, fix)
        found.append(one)
    return found


async def known_findings(
    subject: Subject, known: Sequence[LabelledAnswers], tasks: Mapping[str, Task]
) -> list[Finding]:
    """Both checks; an answer is quoted as it stands in the file."""
    found = []
    for check, good in ((_GOOD, True), (_BAD, False)):
        answers = list(_answers(known, good=good))
        if not answers:
            said = "none is given: --answers"
            found.append(_finding(check, Verdict.NOT_MEASURED, said))
            continue
        played = await subject.play_all(
            [tasks[task_id] for task_id, _ in answers], [turns(said) for _, said in answers]
        )
        best = max([1.0, *(one.reward for one in played if one.reward is not None)])
        wrong = [
            f"{task_id}: {json.dumps(said)[:80]} {one.reason or f'earns {one.reward:g}'}"
            for (task_id, said), one in zip(answers, played, strict=True)
            if is_paid(one, best) is not good and (good or one.reward is not None)
        ]
        verdict = Verdict.FAIL if wrong else Verdict.PASS
        said = some(wrong) if wrong else f"{len(answers)} answers"
        found.append(_finding(check, verdict, said))
    return found


def _answers(known: Sequence[LabelledAnswers], *, good: bool) -> Iterator[tuple[str, Answer]]:
    for one in known:
        for said in one.good if good else one.bad:
            yield one.task_id, said


def _finding(check: str, verdict: Verdict, evidence: str) -> Finding:
    question = _QUESTIONS[check]
    return Finding(check=check, question=question, verdict=verdict, evidence=evidence)
