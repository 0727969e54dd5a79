"""A run file, checked here so that nothing is half-started on the cluster."""

from pathlib import Path
from typing import Any

from millrace_tools.deploy.file_kind import RUN, refuse_other_kind
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import TaskSource
from services.protocol.yaml_text import load_yaml


def read_run_file(
    path: str | Path, *, seed: int | None = None, steps: int | None = None
) -> RunConfig:
    """Read a run file and its task file; `seed` and `steps` replace the file's own.

    Relative paths in the file count from its folder; those in the result are absolute.

    Raises:
        InvalidInput: either file cannot be used.
    """
    data = load_yaml(path)
    refuse_other_kind(data, RUN, str(path))
    config = RunConfig.from_data(_replaced(data, seed=seed, steps=steps), source=str(path))
    folder = Path(path).resolve().parent
    task_file, *files = (
        _absolute_tasks(file, folder, str(path))
        for file in (config.task_file, *(source.file for source in config.tasks))
    )
    tasks = [
        source.model_copy(
            update={
                "file": file,
                "dataset": _absolute_dataset(source, folder),
                "environment": _absolute_environment(source.environment, folder, str(path)),
            }
        )
        for source, file in zip(config.tasks, files, strict=True)
    ]
    run_root = (folder / config.run_root).resolve()
    loss = _absolute_loss(config.algorithm.loss, folder, str(path))
    algorithm = config.algorithm.model_copy(update={"loss": loss})
    paths = {"task_file": task_file, "run_root": str(run_root), "algorithm": algorithm}
    environment = _absolute_environment(config.environment, folder, str(path))
    absolute = config.model_copy(update=paths | {"environment": environment, "tasks": tasks})
    TaskTable(absolute)
    return absolute


def _absolute_tasks(file: str | None, folder: Path, source: str) -> str | None:
    if file is None:
        return None
    task_file = (folder / file).resolve()
    if not task_file.is_file():
        fix = "There is no such file."
        if (folder / "make_model.py").exists():
            fix += f" `python -m examples.{folder.name}.make_model` writes it."
        raise InvalidInput(f"{source}: task_file", str(task_file), fix)
    return str(task_file)


def _absolute_dataset(source: TaskSource, folder: Path) -> str | None:
    """A folder that begins with a dot counts from the run file; other names are as they are."""
    if source.dataset is None or not source.dataset.startswith("."):
        return source.dataset
    return str((folder / source.dataset).resolve())


def _absolute_environment(environment: str | None, folder: Path, source: str) -> str | None:
    if environment is None:
        return None
    place, _, name = environment.rpartition(":")
    file = (folder / place).resolve()
    if not file.is_file():
        raise InvalidInput(f"{source}: environment", str(file), "There is no such file.")
    return f"{file}:{name}"


def _absolute_loss(loss: str, folder: Path, source: str) -> str:
    """The place of a loss in a file of the user's; other losses as they are."""
    place, _, name = loss.rpartition(":")
    if not place.endswith(".py"):
        return loss
    file = (folder / place).resolve()
    if not file.is_file():
        raise InvalidInput(f"{source}: algorithm.loss", str(file), "There is no such file.")
    return f"{file}:{name}"


def _replaced(data: Any, **values: int | None) -> Any:
    given = {name: value for name, value in values.items() if value is not None}
    return {**data, **given} if isinstance(data, dict) else data
