"""Running estimates for sets of tests: how long answers take, and which tests fail."""

from dataclasses import dataclass, field

from cachetools import LRUCache

_WEIGHT = 0.2
"""Of the newest answer in the running mean of processor time."""


@dataclass
class _Seen:
    cpu_s: float | None = None
    failures: dict[int, int] = field(default_factory=dict)


class Estimates:
    """Least recently used facts about sets of tests, by any key for a set."""

    def __init__(self, entries: int) -> None:
        self._seen: LRUCache[str, _Seen] = LRUCache(entries)
        self._typical: dict[str, float] = {}

    def cpu_s(self, key: str, language: str, *, default: float) -> float:
        """Processor seconds that the next answer may take.

        Before the first one to these tests it is what answers in the language took of late, and
        before the first of all `default`.
        """
        seen = self._seen.get(key)
        if seen is None or seen.cpu_s is None:
            return self._typical.get(language, default)
        return seen.cpu_s

    def order(self, key: str, tests: int) -> list[int]:
        """The tests, those first on which most answers failed."""
        seen = self._seen.get(key)
        failures = {} if seen is None else seen.failures
        return sorted(range(tests), key=lambda number: -failures.get(number, 0))

    def learn(self, key: str, language: str, *, cpu_s: float, failed: int | None) -> None:
        """Remember an answer's time and the test it failed first."""
        typical = self._typical.get(language, cpu_s)
        self._typical[language] = typical + _WEIGHT * (cpu_s - typical)
        seen = self._seen.setdefault(key, _Seen())
        before = cpu_s if seen.cpu_s is None else seen.cpu_s
        seen.cpu_s = before + _WEIGHT * (cpu_s - before)
        if failed is not None:
            seen.failures[failed] = seen.failures.get(failed, 0) + 1
