"""An answer to a task of a task file as a job of the reward service."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.grade.code_job import reference_of
from services.orchestrator.tasks.task_rows import open_rows
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import ScoreJob
from services.protocol.run.task import Task, TaskSource
from services.protocol.strict import nearest

_SHOWN = 5


def read_task_job(answer: str, task_file: str, task_id: str | None) -> ScoreJob:
    """The answer with the grader of its task.

    Args:
        answer: the model's answer.
        task_file: JSON lines or Parquet of tasks, or a run file that names such.
        task_id: may be left out where there is only one task.

    Raises:
        InvalidInput: naming the file and line, or the option, that cannot be used.
    """
    known: list[str] = []
    for task in _tasks(_sources(task_file)):
        if task.task_id == task_id:
            return _job(answer, task, task_file)
        known.append(task.task_id)
        alone = task
    if task_id is None and len(known) == 1:
        return _job(answer, alone, task_file)
    some = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
    fix = f"{task_file} has {len(known)} tasks: {some}"
    if task_id is not None:
        fix += nearest(task_id, known)
    raise InvalidInput("--task", task_id, f"{fix}.")


def read_references(task_file: str, task_id: str | None) -> list[ScoreJob]:
    """The reference answers of a task, or of all tasks that have one, as jobs.

    Raises:
        InvalidInput: naming the file and line that cannot be used; there is no reference.
    """
    found = []
    for task in _tasks(_sources(task_file)):
        reference = None if task.grader is None else reference_of(task.grader)
        if task_id in (None, task.task_id) and reference is not None:
            found.append(_job(reference, task, task_file))
    if not found:
        fix = f"{task_file} has no `grader.reference` there: give an answer."
        raise InvalidInput("--task", task_id, fix)
    return found


def _sources(task_file: str) -> Sequence[TaskSource]:
    if Path(task_file).suffix in (".yaml", ".yml"):
        return read_run_file(task_file).task_sources
    return [TaskSource(file=task_file)]


def _tasks(sources: Sequence[TaskSource]) -> Iterator[Task]:
    """All tasks under the ids by which a run knows them."""
    for source in sources:
        rows = open_rows(source)
        for number in range(len(rows)):
            row = rows.row(number, quote=True)
            task = source.task(row, number, rows.place(number), quote=True)
            if source.stream:
                task = task.model_copy(update={"task_id": f"{source.name}:{number + 1}"})
            yield task


def _job(answer: str, task: Task, task_file: str) -> ScoreJob:
    if task.grader is None:
        fix = "It has no grader: the environment of its run gives the reward."
        raise InvalidInput(f"{task_file}: task_id", task.task_id, fix)
    return ScoreJob(job_id=task.task_id, completion=answer, grader=task.grader)
