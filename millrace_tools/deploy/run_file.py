"""A run file, checked here so that nothing is half-started on the cluster."""

from pathlib import Path

from millrace_tools.deploy.file_kind import RUN, refuse_other_kind
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import LIVE, OUTSIDE
from services.protocol.yaml_text import load_yaml


def read_run_file(
    path: str | Path, *, seed: int | None = None, steps: int | None = None
) -> RunConfig:
    """Read a run file; `seed` and `steps` replace the file's own.

    The orchestrator reads its tasks, and so do checks and dry runs. Relative paths in the file
    count from its folder; those in the result are absolute.

    Raises:
        InvalidInput: it cannot be used, or names a file that does not exist.
    """
    data = load_yaml(path)
    refuse_other_kind(data, RUN, str(path))
    if isinstance(data, dict):
        given = {"seed": seed, "steps": steps}
        data = data | {name: value for name, value in given.items() if value is not None}
    config = RunConfig.from_data(data, source=str(path))
    files = _Files(path)
    tasks = [
        source.model_copy(
            update={
                "file": files.tasks(source.file),
                "dataset": files.dataset(source.dataset),
                "environment": files.definition(source.environment, "environment"),
            }
        )
        for source in config.tasks
    ]
    loss: str | None = config.algorithm.loss
    if config.algorithm.loss.rpartition(":")[0].endswith(".py"):  # other losses are built in
        loss = files.definition(loss, "algorithm.loss")
    return config.model_copy(
        update={
            "task_file": files.tasks(config.task_file),
            "run_root": str((files.folder / config.run_root).resolve()),
            "algorithm": config.algorithm.model_copy(update={"loss": loss}),
            "environment": files.definition(config.environment, "environment"),
            "tasks": tasks,
        }
    )


class _Files:
    """Files that a run file names, relative to its folder."""

    def __init__(self, path: str | Path) -> None:
        self.source, self.folder = str(path), Path(path).resolve().parent

    def tasks(self, file: str | None) -> str | None:
        hint = ""
        if (self.folder / "make_model.py").exists():
            hint = f" `python -m examples.{self.folder.name}.make_model` writes it."
        return None if file is None else self._existing(file, "task_file", hint)

    def dataset(self, name: str | None) -> str | None:
        """A name that begins with a dot is a folder; others are of the Hub."""
        local = name is not None and name.startswith(".")
        return str((self.folder / str(name)).resolve()) if local else name

    def definition(self, reference: str | None, field: str) -> str | None:
        """`FILE:NAME` of a definition in a file of the user's; what names no file as it is."""
        if reference in (None, OUTSIDE, LIVE):
            return reference
        file, _, name = reference.rpartition(":")
        return f"{self._existing(file, field)}:{name}"

    def _existing(self, file: str, field: str, hint: str = "") -> str:
        found = (self.folder / file).resolve()
        if not found.is_file():
            fix = f"There is no such file.{hint}"
            raise InvalidInput(f"{self.source}: {field}", str(found), fix)
        return str(found)
