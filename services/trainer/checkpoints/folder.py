"""The checkpoints of one run on disk: begun aside, completed by a rename, removed by one.

A killed process leaves at most a folder whose name begins with a dot, which is never read
and goes with the next save.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from services.protocol.errors import InvalidInput
from services.trainer.checkpoints.manifest import (
    MANIFEST,
    BadCheckpoint,
    CheckpointManifest,
    check_files,
    read_manifest,
)

_COMPLETE = re.compile(r"step-\d{8}")
_WRITING, _REMOVING, _BAD = ".writing-", ".removing-", "bad-"


@dataclass(frozen=True, kw_only=True)
class GoodCheckpoint:
    """A checkpoint whose files have the digests of its manifest.

    Attributes:
        path: its folder.
        manifest: of it.
        refused: newer checkpoints that are not good, each with the reason.
    """

    path: Path
    manifest: CheckpointManifest
    refused: tuple[str, ...]


class CheckpointFolder:
    """Used by one process at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @staticmethod
    def is_name(name: str) -> bool:
        """Whether a folder of this name looks like a checkpoint."""
        return _COMPLETE.fullmatch(name) is not None

    def newest_first(self) -> list[Path]:
        """What looks like a checkpoint, highest step first."""
        if not self.path.is_dir():
            return []
        found = (one for one in self.path.iterdir() if self.is_name(one.name))
        return sorted(found, reverse=True)

    def of_step(self, step: int) -> Path:
        """Where the checkpoint of a train step is, or would be."""
        return self.path / f"step-{step:08d}"

    def begin(self, step: int) -> Path:
        """An empty folder to write the checkpoint of `step` into.

        Raises:
            OSError: it cannot be made.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(".*"):
            if left.name.startswith((_WRITING, _REMOVING)):
                shutil.rmtree(left)
        writing = self.path / f"{_WRITING}{self.of_step(step).name}"
        writing.mkdir()
        return writing

    def complete(self, writing: Path, manifest: CheckpointManifest) -> None:
        """Turn what `begin` gave, its files on disk, into a checkpoint.

        Raises:
            OSError: the disk is full or gone, or the step has a checkpoint; none has changed.
        """
        with (writing / MANIFEST).open("x", encoding="utf-8") as file:
            file.write(manifest.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        _sync(writing)
        writing.rename(self.of_step(manifest.progress.step))
        _sync(self.path)

    def rotate(self, kept: int) -> None:
        """Remove all but the newest; call it when the newest has just been completed."""
        for stale in self.newest_first()[kept:]:
            self._remove(stale)

    def set_aside(self, bad: Iterable[Path]) -> None:
        """Rename what cannot be loaded, so that it is neither tried nor counted again."""
        for path in bad:
            aside = path.with_name(f"{_BAD}{path.name}")
            if aside.exists():
                self._remove(aside)
            path.rename(aside)

    def _remove(self, path: Path) -> None:
        """Not a checkpoint any more at once, gone a moment later."""
        removing = path.with_name(f"{_REMOVING}{path.name}")
        path.rename(removing)
        shutil.rmtree(removing)


def newest_good(
    candidates: Iterable[Path], read: Callable[[Path], CheckpointManifest]
) -> tuple[GoodCheckpoint | None, dict[Path, str]]:
    """The first candidate that `read` does not refuse, and why those before it were refused."""
    bad: dict[Path, str] = {}
    for path in candidates:
        try:
            manifest = read(path)
        except BadCheckpoint as error:
            bad[path] = f"{path.name}: {error}"
        else:
            return GoodCheckpoint(path=path, manifest=manifest, refused=tuple(bad.values())), bad
    return None, bad


def choose(source: Path) -> GoodCheckpoint:
    """The checkpoint at `source`, or the newest good one of the run there; needs no ranks.

    Raises:
        InvalidInput: there is none.
    """
    source = source.resolve()
    candidates = (
        CheckpointFolder(source).newest_first()
        or CheckpointFolder(source / "checkpoints").newest_first()
    )
    if CheckpointFolder.is_name(source.name):
        candidates = [source]

    def read(path: Path) -> CheckpointManifest:
        manifest = read_manifest(path)
        check_files(path, manifest.files.items())
        return manifest

    good, bad = newest_good(candidates, read)
    if good is None:
        fix = "; ".join(bad.values()) or "It is neither a run directory nor a checkpoint of one"
        raise InvalidInput("source", str(source), f"{fix}.")
    return good


def _sync(folder: Path) -> None:
    """Put a folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
