"""A run file, checked here so that nothing is half-started on the cluster."""

from pathlib import Path
from typing import Any

from services.cli.file_kind import RUN, refuse_other_kind
from services.protocol.errors import InvalidInput
from services.protocol.orchestrator import RunConfig
from services.protocol.strict import load_yaml
from services.protocol.task import load_tasks


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
    task_file = (folder / config.task_file).resolve()
    if not task_file.is_file():
        fix = "There is no such file."
        if (folder / "make_model.py").exists():
            fix += f" `python -m examples.{folder.name}.make_model` writes it."
        raise InvalidInput(f"{path}: task_file", str(task_file), fix)
    load_tasks(task_file)
    run_root = (folder / config.run_root).resolve()
    loss = _absolute_loss(config.algorithm.loss, folder, str(path))
    algorithm = config.algorithm.model_copy(update={"loss": loss})
    paths = {"task_file": str(task_file), "run_root": str(run_root), "algorithm": algorithm}
    return config.model_copy(update=paths)


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
