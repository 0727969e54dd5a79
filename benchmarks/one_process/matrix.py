"""The configurations of `benchmarks.one_process`: each is the demo's run file with changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learning.matrix import Configuration, merged
from services.protocol.yaml_text import load_yaml

_MATRIX = load_yaml(Path(__file__).with_name("matrix.yaml"))
DISTILLATION: dict[str, dict[str, Any]] = _MATRIX["distillation"]
TEACHER = "distillation/reward"
"""Its last weights teach where a configuration names a teacher."""


def configurations() -> Iterator[Configuration]:
    """All of them, in the order in which they are worth running."""
    for name, changes in DISTILLATION.items():
        whole = merged({"schedule": {"preset": "sync"}, "evaluation": {"every": 2}}, changes)
        yield Configuration(name=f"distillation/{name}", changes=whole)


def is_taught(one: Configuration) -> bool:
    """Whether it needs the teacher."""
    return "distillation" in one.changes["algorithm"]


def with_teacher(missing: list[Configuration]) -> list[Configuration]:
    """The same, the run that makes the teacher before those that need it."""
    if not any(map(is_taught, missing)):
        return missing
    first = [one for one in configurations() if one.name == TEACHER]
    return first + [one for one in missing if one.name != TEACHER]
