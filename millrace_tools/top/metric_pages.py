"""A few metrics from the pages that Prometheus scrapes."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 2.0
_PAGES_AT_ONCE = 16

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels."""


class MetricPages:
    """Reads pages at the same time; a page that does not answer has no series."""

    def __init__(self) -> None:
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)
        self._pool = ThreadPoolExecutor(_PAGES_AT_ONCE, thread_name_prefix="metrics")

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown(cancel_futures=True)
        self._http.close()

    def read(self, urls: Sequence[str], names: Iterable[str]) -> list[Series]:
        """The series of these names on each page."""
        wanted = tuple(names)
        return list(self._pool.map(lambda url: self._page(url, wanted), urls))

    def _page(self, url: str, names: tuple[str, ...]) -> Series:
        try:
            answer = self._http.get(url)
            return series(answer.text, names) if answer.is_success else {}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # the last: not a page of metrics
            return {}


def series(page: str, names: tuple[str, ...]) -> Series:
    """The series of these names; the other lines, which are many, are not parsed."""
    lines = "\n".join(line for line in page.splitlines() if line.startswith(names))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(lines + "\n")
        for sample in family.samples
    }


def total(found: Iterable[Series], name: str) -> float | None:
    """The sum over all series of a name; None where there is none."""
    values = [value for one in found for (known, _), value in one.items() if known == name]
    return sum(values) if values else None


def by_label(found: Iterable[Series], name: str, label: str) -> dict[str, float]:
    """Sums over all series of a name, by one label."""
    sums: dict[str, float] = {}
    for one in found:
        for (known, labels), value in one.items():
            if known == name and (key := dict(labels).get(label)) is not None:
                sums[key] = sums.get(key, 0.0) + value
    return sums


class Rates:
    """Growth of counters in a second.

    Ray writes its pages every ten seconds, so a counter that did not grow may not be new: its
    last rate counts until it grows again, or for two such intervals.
    """

    _FORGET_S = 25.0

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}
        self._rates: dict[str, float] = {}

    def of(self, counts: Mapping[str, float], now: float | None = None) -> dict[str, float]:
        """Rates of the counters that have grown lately."""
        now = time.monotonic() if now is None else now
        for name, count in counts.items():
            then, before = self._seen.get(name, (now, math.inf))
            if count < before or (count == before and now - then > self._FORGET_S):
                self._rates.pop(name, None)  # also of a process that began to count anew
            elif count > before and now > then:
                self._rates[name] = (count - before) / (now - then)
            else:
                continue
            self._seen[name] = (now, count)
        return {name: rate for name, rate in self._rates.items() if name in counts}
