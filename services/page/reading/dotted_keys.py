"""The keys of a configuration, one name each."""

from collections.abc import Iterator, Mapping


def dotted(config: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Each value with its key, such as `algorithm.kl.coefficient` or `tasks[0].file`."""
    for key, value in config.items():
        yield from _below(key, value)


def _below(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _below(f"{key}.{name}", inner)
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        for place, inner in enumerate(value):
            yield from _below(f"{key}[{place}]", inner)
    else:
        yield key, value
