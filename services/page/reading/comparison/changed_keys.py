"""The keys of run files that differ between runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.page.reading.comparison.figure_text import shown
from services.page.reading.run_config import resolved

_NOT_SETTINGS = ("run_root",)


@dataclass(frozen=True)
class ChangedKey:
    """A key, and its value in each run.

    Attributes:
        key: dotted, such as `algorithm.learning_rate`.
        values: as people read them, in the order of the runs.
    """

    key: str
    values: tuple[str, ...]


def changed_keys(configs: Sequence[Mapping[str, Any]]) -> list[ChangedKey]:
    """Keys whose values differ, in the order of the run file."""
    flat = [resolved(config) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = ((key, tuple(shown(one.get(key)) for one in flat)) for key in keys)
    return [
        ChangedKey(key, values)
        for key, values in rows
        if key not in _NOT_SETTINGS and len(set(values)) > 1
    ]
