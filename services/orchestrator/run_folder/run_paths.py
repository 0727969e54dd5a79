"""The paths in a run file, as the service takes them: it does not know the run file's folder."""

import os
from errno import ENAMETOOLONG
from pathlib import Path

from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig


def check_paths(run: RunConfig) -> None:
    """Refuse a folder or a task file that cannot be one.

    Raises:
        InvalidInput: the first of them.
    """
    paths = [("run_root", run.run_root), ("task_file", run.task_file)]
    paths += [("tasks.file", source.file) for source in run.tasks]
    for field, value in paths:
        if value is not None and not Path(value).is_absolute():
            fix = "Send an absolute path: the service does not know the run file's folder."
            raise InvalidInput(field, value, fix)
        if value is not None and not _can_be_a_path(value):
            raise InvalidInput(field, value, "No file has such a name.")


def _can_be_a_path(text: str) -> bool:
    try:
        os.lstat(text)
    except ValueError:  # it holds a zero, or half of a surrogate pair
        return False
    except OSError as error:
        return error.errno != ENAMETOOLONG
    return True


def check_environments(run: RunConfig) -> None:
    """Refuse an environment whose file is not here.

    Raises:
        InvalidInput: the first of them.
    """
    for environment in filter(None, run.environments):
        path = environment.rpartition(":")[0]
        if not os.path.isabs(path) or not os.path.isfile(path):
            fix = "Name a file that is there where the orchestrator runs, by its absolute path."
            raise InvalidInput("environment", environment, fix)
