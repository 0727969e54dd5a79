"""The configuration of a run as it was resolved, beside the defaults."""

from collections.abc import Mapping
from typing import Any

from services.page.reading.dotted_keys import dotted
from services.protocol.run.orchestrator import RunConfig

_LEAST = {
    "name": "x",
    "task_file": "x",
    "model": "x",
    "steps": 1,
    "batch_groups": 1,
    "group_size": 2,
}


def resolved(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every key with its value; `default` is what it is where a run file says nothing.

    A key that every run file must have has no default. Keys of older versions have none either.
    """
    known = RunConfig.model_validate(_LEAST).model_dump(mode="json")
    defaults = dict(dotted({key: value for key, value in known.items() if key not in _LEAST}))
    return [
        {"key": key, "value": value, "changed": key not in defaults or value != defaults[key]}
        | ({"default": defaults[key]} if key in defaults else {})
        for key, value in dotted(config)
    ]
