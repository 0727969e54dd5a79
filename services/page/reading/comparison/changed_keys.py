"""The keys of run files that differ between runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from services.page.reading.comparison.figure_text import shown
from services.page.reading.dotted_keys import dotted
from services.protocol.run.orchestrator import RunConfig

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
    """Keys whose values differ, in the order of the run file.

    A key that is younger than a run has its default there, which is what the run did.
    """
    flat = [dict(dotted(_resolved(config))) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = ((key, tuple(shown(one.get(key)) for one in flat)) for key in keys)
    return [
        ChangedKey(key, values)
        for key, values in rows
        if key not in _NOT_SETTINGS and len(set(values)) > 1
    ]


def _resolved(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the defaults of keys that it lacks; as it is if it is a run file no more."""
    try:
        return RunConfig.model_validate(config).model_dump(mode="json")
    except (ValidationError, RecursionError):
        return config
