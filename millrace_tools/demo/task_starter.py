"""The five files of `millrace init --task`: tasks, grader, run file, deployment, README."""

import json
import os
import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

from services.protocol.errors import InvalidInput

_TEMPLATE = Path(__file__).parent / "task_template"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_HELDOUT = 4
"""One task in so many is only measured."""
_SERVICE = """  import_path: services.reward_service.app:build
  args: {}
"""
_WITH_GRADER = """  import_path: services.reward_service.app:build
  args:
    grader_modules: [grader]  # grader.py
  runtime_env:  # raise GRADER after a change of grader.py
    env_vars: {PYTHONPATH: FOLDER, GRADER: "1"}
"""
_MODEL = "models/tiny_code-seed0"


def write_task(name: str, folder: Path, *, deployment: Path, model: Path) -> list[Path]:
    """Write a task that runs as it is; files that exist stay as they are.

    Args:
        name: of the task, its grader and its runs.
        folder: of the files; made if it is not there.
        deployment: the Serve file for one machine that becomes the task's.
        model: the demo's model, whether it was made yet or not.

    Returns:
        The files that were written.

    Raises:
        InvalidInput: no run can have this name, or the folder cannot be written.
    """
    if not _NAME.fullmatch(name):
        fix = "Give up to 40 of a-z, 0-9, _ and -, the first a letter or digit."
        raise InvalidInput("--task", name, fix)
    shown = folder if folder.is_absolute() else os.path.normpath(folder)
    place = {"task_name": name, "task_folder": str(shown)}
    texts = {
        "tasks.jsonl": "".join(json.dumps(row) + "\n" for row in _tasks(name)),
        **{file: _filled(file, place) for file in ("grader.py", "run.yaml", "README.md")},
        "deploy.yaml": _deployment(deployment, folder, model),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [folder / file for file in texts if not (folder / file).exists()]
        for path in missing:
            path.write_text(texts[path.name], encoding="utf-8")
    except OSError as error:
        raise InvalidInput("folder", str(folder), f"It cannot be written: {error}.") from None
    return missing


def _filled(file: str, place: dict[str, str]) -> str:
    text = (_TEMPLATE / file).read_text(encoding="utf-8")
    for word, value in place.items():
        text = text.replace(word, value)
    return text


def _deployment(laptop: Path, folder: Path, model: Path) -> str:
    """The laptop's services with the task's grader, in the words of its file."""
    _, settings, services = laptop.read_text(encoding="utf-8").partition("proxy_location:")
    text = f"# The services of {folder.name} on one machine without a GPU.\n{settings}{services}"
    grader = _WITH_GRADER.replace("FOLDER", json.dumps(str(folder.resolve())))
    for before, after in ((_SERVICE, grader), (f"&model {_MODEL}\n", f"&model {model}\n")):
        assert text.count(before) == 1, f"{laptop} has changed: {before}"
        text = text.replace(before, after)
    return text


def _tasks(name: str) -> Iterator[dict[str, Any]]:
    """Two operations in words, which is what the demo's model understands."""
    for number, (first, x, y, second) in enumerate(_combinations()):
        (z,) = set("abc") - {x, y}
        right = f"return ({x}{_SIGNS[first]}{y}){_SIGNS[second]}{z}"
        yield {
            "task_id": f"{x}-{first}-{y}-{second}-{z}",
            "split": "train" if (number + 1) % _HELDOUT else "heldout",
            "messages": [{"role": "user", "content": f"{x} {first} {y}, {second} {z}"}],
            "grader": {
                "kind": "python",
                "name": name,
                "arguments": {"expected": right},
                "reference": right,  # with it a grader that fails is told from a bad answer
            },
        }


def _combinations() -> Iterator[tuple[str, str, str, str]]:
    for first in _SIGNS:
        for x, y in permutations("abc", 2):
            for second in _SIGNS:
                yield first, x, y, second
