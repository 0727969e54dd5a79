"""A run that is on disk: found again, compared with a run file, resumed or branched off."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from services.ledger.ledger import LEDGER_FILE, ledger_of
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunRequest

LAST = "last"
"""In place of a run's id: the run of the same name that was written last."""

_RUN_ID = re.compile(r"[\w-]{1,100}", re.ASCII)
_OF_NAME = r"{}-\d{{8}}-\d{{6}}-[0-9a-f]+"
_MAY_DIFFER = ("steps", "run_root", "trackers")
_FILES = ("task_file", "environment", "loss", "file", "dataset")
"""Keys of a run, its algorithm and its sources whose values can be files, or begin with one."""
_MOST_CHANGES, _WIDTH = 20, 60


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A run and the configuration that it has had so far."""

    directory: RunDirectory
    config: RunConfig

    @classmethod
    def of(cls, request: RunRequest) -> Self | None:
        """The run that a request resumes, if that may be, or branches off; None: neither.

        Raises:
            InvalidInput: there is no such run, or the run file is not the run's.
        """
        if request.resume is not None:
            earlier = cls._find(request.config, "resume", request.resume)
            earlier._check_same(request.config)
            earlier._check_steps(request.config)
            return earlier
        if request.branch is not None:
            return cls._find(request.config, "branch", request.branch)
        return None

    @classmethod
    def _find(cls, config: RunConfig, field: str, run_id: str) -> Self:
        found = _newest(config) if run_id == LAST else run_id
        path = Path(config.run_root) / str(found)
        if found is None or not _RUN_ID.fullmatch(found) or not os.path.exists(path / LEDGER_FILE):
            which = f"run of {config.name}" if found is None else "such run"
            raise InvalidInput(field, run_id, f"There is no {which} under {config.run_root}.")
        directory = RunDirectory(path)
        return cls(directory=directory, config=directory.read_config())

    @property
    def run_id(self) -> str:
        """The run's id: the folder's name."""
        return self.directory.path.name

    def resume(self, config: RunConfig) -> RunDirectory:
        """The run's folder, whose `config.yaml` says from now on what the run is to be.

        Raises:
            InvalidInput: it cannot be written.
        """
        if config != self.config:
            try:
                self.directory.write_config(config)
            except OSError as error:
                fix = f"The run's config.yaml cannot be written there: {error.strerror}."
                raise InvalidInput("run_root", config.run_root, fix) from None
        return self.directory

    def branch(self, config: RunConfig, run_id: str) -> RunDirectory:
        """The folder of a new run that begins with this run's newest checkpoint.

        The checkpoints stay there as they are now, whatever becomes of this run: as links where
        the file system has them.

        Raises:
            InvalidInput: there is no checkpoint, or the folder cannot be written.
        """
        checkpoints = _checkpoints(self.directory.checkpoints) or _checkpoints(
            self.directory.origin
        )
        if not checkpoints:
            fix = "It has no checkpoint yet: start the new run without it."
            raise InvalidInput("branch", self.run_id, fix)
        branch = RunDirectory.create(config, run_id)
        try:
            for one in checkpoints:
                target = branch.origin / one.name
                shutil.copytree(one, target, symlinks=True, copy_function=_link)
        except OSError as error:
            branch.remove()
            fix = f"The checkpoints of {self.run_id} cannot be copied there: {error}."
            raise InvalidInput("run_root", config.run_root, fix) from None
        return branch

    def _check_same(self, config: RunConfig) -> None:
        """Refuse a run file that differs from the run's in what a run keeps from its start.

        Raises:
            InvalidInput: with every key that differs, as it was and as it would be.
        """
        changes = list(_changes(_kept(self.config), _kept(config)))
        if not changes:
            return
        lines = [f"{key}: {_text(old)} -> {_text(new)}" for key, old, new in changes]
        if (more := len(lines) - _MOST_CHANGES) > 0:
            lines[_MOST_CHANGES:] = [f"and {more} more"]
        listed = "".join(f"\n  {line}" for line in lines)
        key, _, value = changes[0]
        fix = (
            f"Run {self.run_id} began with other values, old -> new:{listed}\n"
            "Only `steps` and `trackers` may change in a run. Put the old values back, or begin a "
            f"new run with its newest checkpoint: `--branch {self.run_id}` in place of `--resume`."
        )
        raise InvalidInput(key, value, fix)

    def _check_steps(self, config: RunConfig) -> None:
        """Refuse an end that the run has passed: it would close its open sample groups at once.

        Raises:
            InvalidInput: with the number of steps that goes on with it.
        """
        with ledger_of(self.directory.path) as ledger:
            step = ledger.last_step()
        wanted, before = config.steps, self.config.steps
        if wanted > step or (wanted == step and before <= step):
            return
        goes_on = f"`--steps {before}`" if before > step else f"`--steps`, more than {step}"
        fix = (
            f"Run {self.run_id} has done {step} of {before} train steps, so it would end at once: "
            f"give {goes_on}. Nothing was changed."
        )
        raise InvalidInput("steps", wanted, fix)


def _newest(config: RunConfig) -> str | None:
    """The run of this name that was written last."""
    of_name = re.compile(_OF_NAME.format(re.escape(config.name)))
    ledgers = Path(config.run_root).glob(f"*/{LEDGER_FILE}")
    runs = [one.parent for one in ledgers if of_name.fullmatch(one.parent.name)]
    newest = max(runs, key=lambda run: (RunDirectory(run).written_at, run.name), default=None)
    return None if newest is None else newest.name


def _kept(config: RunConfig) -> dict[str, Any]:
    """What a run keeps from its start to its end.

    The folder with all its files may have moved: of a file the name is kept. Only sources whose
    name is in the ids of their tasks stay where they are, else the run would not know these again.
    """
    kept = config.model_dump(mode="json", exclude=set(_MAY_DIFFER))
    movable = [kept, kept["algorithm"]]
    pairs = zip(config.tasks, kept["tasks"], strict=True)
    movable += [one for source, one in pairs if not source.names_its_tasks]
    for settings in movable:
        for key in _FILES:
            if str(settings.get(key)).startswith("/"):
                settings[key] = settings[key].rpartition("/")[2]
    return kept


def _changes(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys whose values differ, each with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before | now:
            place = f"{key}.{name}" if key else name
            yield from _changes(before.get(name), now.get(name), place)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _changes(old, new, f"{key}.{number}")
    elif before != now:
        yield key, before, now


def _text(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints: those being written or removed begin with a dot."""
    if not folder.is_dir():
        return []
    return [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
