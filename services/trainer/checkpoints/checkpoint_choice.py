"""Which checkpoint is meant by a path, when one process looks alone."""

from pathlib import Path

from services.protocol.errors import InvalidInput
from services.trainer.checkpoints.checkpoint_folder import CheckpointFolder
from services.trainer.checkpoints.checkpoint_manifest import (
    BadCheckpoint,
    CheckpointManifest,
    check_files,
    read_manifest,
)

Choice = tuple[Path, CheckpointManifest, tuple[str, ...]]
"""A good checkpoint, its manifest, and newer ones that are not good with the reasons."""


def choose(source: Path) -> Choice:
    """The checkpoint at `source`, or the newest good one of the run there.

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
    refused: list[str] = []
    for path in candidates:
        try:
            manifest = read_manifest(path)
            check_files(path, manifest.files.items())
        except BadCheckpoint as error:
            refused.append(f"{path.name}: {error}")
        else:
            return path, manifest, tuple(refused)
    fix = "; ".join(refused) or "It is neither a run directory nor a checkpoint of one"
    raise InvalidInput("source", str(source), f"{fix}.")
