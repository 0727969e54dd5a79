"""What is audited or tried by name: files of a run that plays it, written here."""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from millrace_tools.command import option
from services.protocol.errors import InvalidInput
from services.protocol.run.task import OUTSIDE
from services.protocol.text_file import read_text_file

FOLDER = "subject"
_PROMPT = "Act."
_GYMNASIUM = re.compile(r"[\w:./-]+-v\d+")
_MODULE = re.compile(r"[A-Za-z][\w.-]*")
_IN_A_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)")
_TASKS, _HELDOUT = 64, 8
_WRITE_S = 600.0
_KNOWN = (
    "Name a run file, a task file (.jsonl), FILE.py:NAME or MODULE:NAME, an OpenEnv server's URL, "
    "an id of gymnasium (Name-v0), an environment of verifiers, or a folder of Harbor's tasks"
)
ENVIRONMENT = (
    option(
        "environment",
        metavar="ENV",
        help="a run file, or the tasks or environment alone: tasks.jsonl, FILE.py:NAME, "
        "MODULE:NAME, the URL of an OpenEnv server, an id of gymnasium, a name of verifiers, a "
        "folder of Harbor's tasks",
    ),
    option("--task-file", metavar="FILE", help="tasks for FILE.py:NAME (tasks.jsonl beside it)"),
    option("--arguments", metavar="JSON", help="of an environment that has a name"),
    option("--act", metavar="FIELD", help="of an OpenEnv action, such as number:int"),
    option("--prompt", default=_PROMPT, help="begins episodes of gymnasium and OpenEnv"),
)
"""Options that say what is played, for `run_file_of`."""


def run_file_of(arguments: argparse.Namespace) -> str:
    """The run file that `ENV` names, or one that is written to `subject` of the report's folder.

    Raises:
        InvalidInput: nothing is there of this name, or it cannot be played without being told more.
    """
    name: str = arguments.environment
    if name.endswith((".yaml", ".yml")):
        if arguments.task_file is not None:
            fix = "The run file names its tasks: leave it out."
            raise InvalidInput("--task-file", arguments.task_file, fix)
        return name
    folder = Path(arguments.out) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    given = _arguments(arguments.arguments)
    if name.endswith(".jsonl"):
        tasks: Path | None = Path(name)
        environment = OUTSIDE if arguments.agent else None
    elif (own := _own(name)) is not None:
        tasks, environment = _played(arguments, folder, own, given)
    elif any(Path(name).glob("*/task.toml")):
        tasks, root = folder / "tasks.jsonl", str(Path(name).resolve())
        environment = _adapter(folder, "harbor", _words(root, given))
        _written_by("harbor", root, str(tasks))
    elif name.startswith(("http://", "https://")):
        tasks, environment = None, _adapter(folder, "openenv", _act(name, arguments.act))
    elif _GYMNASIUM.fullmatch(name):
        tasks, environment = None, _adapter(folder, "gymnasium", _words(name, given))
    elif _MODULE.fullmatch(name):
        tasks, words = folder / "tasks.jsonl", _words(name, given)
        environment = _adapter(folder, "verifiers", words)
        _written_by("verifiers", name, str(tasks), "--arguments", json.dumps(given))
    else:
        raise InvalidInput("ENV", name, f"{_KNOWN}.")
    return _run_file(arguments, folder, tasks, environment)


@dataclass(frozen=True)
class _Own:
    """A definition in a file of the user's.

    Attributes:
        path: of the file.
        root: from which Python imports it.
        module: its name there.
        name: of the definition.
    """

    path: Path
    root: Path
    module: str
    name: str


def _own(name: str) -> _Own | None:
    """What `FILE.py:NAME` or `MODULE:NAME` says; None if it says neither.

    A module is looked for and not imported here: it may take long, or print.

    Raises:
        InvalidInput: there is no such module.
    """
    file, _, definition = name.rpartition(":")
    if file.endswith(".py"):
        path = Path(file).resolve()
        return _Own(path, path.parent, path.stem, definition)
    if (found := _IN_A_MODULE.fullmatch(name)) is None:
        return None
    module, definition = found.groups()
    for place in ("", *sys.path):
        root = Path(place).resolve()
        path = root.joinpath(*module.split("."))
        for one in (path.with_suffix(".py"), path / "__init__.py"):
            if one.is_file():
                return _Own(one, root, module, definition)
    raise InvalidInput("ENV", name, f"There is no module {module} here or where Python looks.")


def _played(
    arguments: argparse.Namespace, folder: Path, own: _Own, given: Mapping[str, Any]
) -> tuple[Path | None, str]:
    """A rollout function, or a class of a gymnasium environment."""
    source = read_text_file(own.path, field="ENV")
    lines = f"import sys\nsys.path.insert(0, {str(own.root)!r})\n"
    if re.search(rf"^class {re.escape(own.name)}\b", source, re.MULTILINE):
        made = f"audited/{own.name}-v0"
        lines += f"import gymnasium\ngymnasium.register({made!r}, "
        lines += f"entry_point='{own.module}:{own.name}')\n"
        return None, _adapter(folder, "gymnasium", _words(made, given), before=lines)
    tasks = Path(arguments.task_file or own.path.with_name("tasks.jsonl"))
    if not tasks.exists():
        fix = f"An environment plays tasks: name their file, as there is no {tasks}."
        raise InvalidInput("--task-file", arguments.task_file, fix)
    if own.module == own.path.stem:
        return tasks, f"{own.path}:{own.name}"
    return tasks, _written(folder, f"{lines}from {own.module} import {own.name} as rollout\n")


def _act(url: str, given: str | None) -> str:
    """How an answer becomes an action: `FIELD`, or `FIELD:int`."""
    field, _, kind = (given or "").partition(":")
    if not field.isidentifier() or kind not in ("", "int", "float"):
        fix = "Say in which field of an action an answer belongs: FIELD, FIELD:int or FIELD:float."
        raise InvalidInput("--act", given, fix)
    return f"[{url!r}], act={{{field!r}: {kind or 'str'}}}"


def _arguments(text: str | None) -> Mapping[str, Any]:
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, TypeError):
        fix = """Write an object of JSON, such as '{"size": 5}'."""
        raise InvalidInput("--arguments", text, fix) from None


def _words(name: str, given: Mapping[str, Any]) -> str:
    """Name and arguments, as a call has them."""
    return ", ".join([repr(name), *(f"{key}={value!r}" for key, value in given.items())])


def _adapter(folder: Path, package: str, words: str, *, before: str = "") -> str:
    """A file with the rollout function of an adapter, called with these words."""
    text = f"{before}from environments.{package} import {package}_rollout\n\n"
    return _written(folder, text + f"rollout = {package}_rollout({words})\n")


def _written(folder: Path, text: str) -> str:
    path = folder.resolve() / "environment.py"
    path.write_text(text, encoding="utf-8")
    return f"{path}:rollout"


def _written_by(package: str, *words: str) -> None:
    """Have an adapter write a task file, in a process of its own.

    Raises:
        InvalidInput: it says why it cannot.
    """
    command = [sys.executable, "-m", f"environments.{package}", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_WRITE_S, check=False
        )
    except subprocess.TimeoutExpired:
        fix = f"It was not made in {_WRITE_S:g} s: is it downloading?"
        raise InvalidInput("ENV", words[0], fix) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise InvalidInput("ENV", words[0], f"{_KNOWN}. {package} says: {lines[-1]}")


def _run_file(
    arguments: argparse.Namespace, folder: Path, tasks: Path | None, environment: str | None
) -> str:
    """A run of these tasks, or of seeds for an environment that makes its own."""
    if arguments.task_file is not None:
        tasks = Path(arguments.task_file)
    own = folder / "tasks.jsonl"
    if tasks is None:
        counts = ["--tasks", str(_TASKS), "--heldout", str(_HELDOUT)]
        _written_by("gymnasium", str(own), *counts, "--prompt", arguments.prompt)
    elif tasks.resolve() != own.resolve():
        if not tasks.exists():
            raise InvalidInput("--task-file", str(tasks), "There is no such file.")
        shutil.copyfile(tasks, own)
    name = re.sub(r"[^a-z0-9_-]+", "-", arguments.environment.lower()).strip("-")
    run = {"name": name[-40:].strip("-"), "task_file": own.name, "model": arguments.model or "m"}
    run |= {"steps": 100, "batch_groups": 8, "group_size": 8}
    run |= {} if environment is None else {"environment": environment}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run, sort_keys=False), encoding="utf-8")
    return str(path)
