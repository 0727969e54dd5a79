"""The configurations of `benchmarks.one_process`: each is the demo's run file with changes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning.matrix import ALGORITHM_BOUNDS, Configuration, bounded, merged
from services.protocol.yaml_text import load_yaml

_MATRIX = load_yaml(Path(__file__).with_name("matrix.yaml"))
DISTILLATION: dict[str, dict[str, Any]] = _MATRIX["distillation"]
STUDENT = "on_policy_distillation"
"""The preset that is run at each bound of staleness."""
_OF_STALE = {"ratio_anchor": "proximal"}
"""What the preset chooses for stale answers, and the demo's run file otherwise."""
TEACHER = "distillation/reward"
"""Its last weights teach where a configuration names a teacher."""


def configurations() -> Iterator[Configuration]:
    """All of them, in the order in which they are worth running."""
    for name, changes in DISTILLATION.items():
        yield _configuration(f"distillation/{name}", {"preset": "sync"}, changes)
    taught = merged(DISTILLATION["teacher"], {"algorithm": _OF_STALE})
    for bound in filter(None, ALGORITHM_BOUNDS):
        yield _configuration(stale_name(STUDENT, bound), bounded(bound), taught)


def _configuration(
    name: str, schedule: Mapping[str, Any], changes: Mapping[str, Any]
) -> Configuration:
    whole = merged({"schedule": schedule, "evaluation": {"every": 2}}, changes)
    return Configuration(name=name, changes=whole)


def stale_name(preset: str, bound: int) -> str:
    """Name of the configuration that is run for this preset and `max_staleness`."""
    return f"stale_distillation/{preset}/{bound}" if bound else "distillation/teacher"


def is_taught(one: Configuration) -> bool:
    """Whether it needs the teacher."""
    return "distillation" in one.changes["algorithm"]


def with_teacher(missing: list[Configuration]) -> list[Configuration]:
    """The same, the run that makes the teacher before those that need it."""
    if not any(map(is_taught, missing)):
        return missing
    first = [one for one in configurations() if one.name == TEACHER]
    return first + [one for one in missing if one.name != TEACHER]
