"""The record of every version: its manifest, its commits and its failures."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.protocol.weights.version_ledger import VersionOutcome, VersionRecord
from services.protocol.weights.weights import WeightManifest

_OUTCOMES = 64
"""Outcomes kept of each version; replicas that restart for ever have ever new names."""


@dataclass
class _Entry:
    base: int | None
    manifest: WeightManifest | None = None
    published_at: float | None = None
    commits: int = 0
    failures: int = 0
    outcomes: deque[VersionOutcome] = field(default_factory=lambda: deque(maxlen=_OUTCOMES))


class VersionLedger:
    """The newest versions, a bounded number of them.

    It lives in memory. After a restart the members of the bus report again: replicas the
    versions that they serve, the trainer the newest one. Earlier failures and times of
    publishing are lost; an earlier commit counts when its replica registers.

    Args:
        keep: versions to remember.
        wall: seconds since 1970.
    """

    def __init__(self, keep: int, *, wall: Callable[[], float]) -> None:
        self._keep, self._wall = keep, wall
        self._entries: dict[int, _Entry] = {}

    def published(self, manifest: WeightManifest) -> None:
        """A trainer published a version; also one that replicas were known to serve."""
        entry = self._entry(manifest.version)
        entry.manifest, entry.published_at = manifest, self._wall()

    def found(self, manifest: WeightManifest) -> None:
        """A member holds a version, which was published before a restart."""
        entry = self._entry(manifest.version)
        entry.manifest = entry.manifest or manifest

    def serves(self, replica_id: str, version: int, copy: WeightManifest | None) -> None:
        """A replica that registers serves a version; counted once for each replica."""
        entry = self._entry(version)
        if copy is not None and copy.version == version and entry.manifest is None:
            entry.manifest = copy
        if not _has_committed(entry, replica_id):
            self._add(entry, replica_id, None)

    def committed(self, replica_id: str, version: int, **seconds: float) -> None:
        """A replica serves the version from now on; `seconds` as in `VersionOutcome`."""
        self._add(self._entry(version), replica_id, None, **seconds)

    def failed(self, replica_id: str, version: int, error: str) -> None:
        """An attempt to bring the version to a replica failed."""
        self._add(self._entry(version), replica_id, error)

    def records(self) -> tuple[VersionRecord, ...]:
        """All that is remembered, oldest version first."""
        return tuple(_record(version, entry) for version, entry in sorted(self._entries.items()))

    def _add(self, entry: _Entry, replica_id: str, error: str | None, **seconds: float) -> None:
        if error is not None:
            entry.failures += 1
        elif not _has_committed(entry, replica_id):
            entry.commits += 1
        entry.outcomes.append(
            VersionOutcome(replica_id=replica_id, at=self._wall(), error=error, **seconds)
        )

    def _entry(self, version: int) -> _Entry:
        """The version's entry; one older than everything that is kept is not kept either."""
        if version not in self._entries:
            base = max((one for one in self._entries if one < version), default=None)
            entry = _Entry(base=base)
            if len(self._entries) >= self._keep:
                oldest = min(self._entries)
                if version < oldest:
                    return entry
                del self._entries[oldest]
            self._entries[version] = entry
        return self._entries[version]


def _has_committed(entry: _Entry, replica_id: str) -> bool:
    return any(one.replica_id == replica_id and one.error is None for one in entry.outcomes)


def _record(version: int, entry: _Entry) -> VersionRecord:
    manifest = entry.manifest
    return VersionRecord(
        version=version,
        train_step=manifest.train_step if manifest is not None else None,
        digest=manifest.digest if manifest is not None else "",
        model=manifest.model if manifest is not None else "",
        base=entry.base,
        published_at=entry.published_at,
        commits=entry.commits,
        failures=entry.failures,
        outcomes=tuple(entry.outcomes),
    )
