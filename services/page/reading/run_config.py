"""The configuration of a run: every key by one name, beside its default."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from services.protocol.run.orchestrator import RunConfig

_REQUIRED = {
    "name": "x",
    "task_file": "x",
    "model": "x",
    "steps": 1,
    "batch_groups": 1,
    "group_size": 2,
}


def resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Each value by its key, such as `algorithm.kl.coefficient` or `tasks[0].file`.

    A key that is younger than the run has its default. What is no run file any more stays as it is.
    """
    with suppress(ValidationError, RecursionError):
        config = RunConfig.model_validate(config).model_dump(mode="json")
    return dict(_dotted(config))


def beside_defaults(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every key of a configuration with its value, its default, and whether they differ.

    A key that every run file must have has no default. Keys of older versions have none either.
    """
    least = RunConfig.model_validate(_REQUIRED).model_dump(mode="json")
    defaults = dict(_dotted({key: least[key] for key in least.keys() - _REQUIRED.keys()}))
    return [
        {"key": key, "value": value, "changed": key not in defaults or value != defaults[key]}
        | ({"default": defaults[key]} if key in defaults else {})
        for key, value in _dotted(config)
    ]


def _dotted(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield from _below(key, value)


def _below(key: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _below(f"{key}.{name}", inner)
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        for place, inner in enumerate(value):
            yield from _below(f"{key}[{place}]", inner)
    else:
        yield key, value
