"""The manifest of a checkpoint, and checks of its files against it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import Field, ValidationError

from services.protocol.strict import StrictModel
from services.protocol.trainer import LedgerFrontier
from services.protocol.weights.weights import Dtype
from services.trainer.config import LoraConfig, Moments

MANIFEST = "manifest.json"
"""Written last: a folder without it is not a checkpoint."""


class FileDigest(StrictModel):
    """One file: its size in bytes and its blake3 in hex."""

    size: int = Field(ge=0)
    blake3: str


class Progress(StrictModel):
    """The progress of a run at its checkpoint.

    Attributes:
        step: train steps done.
        optimizer_steps: optimizer updates done.
        policy_version: version under which these weights were published.
    """

    step: int = 0
    optimizer_steps: int = 0
    policy_version: int = -1


class CheckpointManifest(StrictModel):
    """The contents of `manifest.json`.

    Attributes:
        format: of the folder; grows when an older release could not read it.
        run_id: the run.
        progress: where it was.
        frontier: where its ledger was, None if it is not known.
        world_size: ranks that wrote it; any number can read it.
        model: what the run started from, as the trainer's configuration names it.
        dtype: in which the weights were served.
        moments: of the optimizers, as they were kept.
        lora: the adapter that was trained, None where the model itself was.
        base: digest of the weights that the adapter is for, None without one.
        files: every other file, by its path in the folder.
    """

    format: Literal[1] = 1
    run_id: str
    progress: Progress
    frontier: LedgerFrontier | None = None
    world_size: int
    model: str
    dtype: Dtype
    moments: Moments = "float32"
    lora: LoraConfig | None = None
    base: str | None = None
    files: dict[str, FileDigest] = Field(default_factory=dict)


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be trusted; the message says why."""


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """Read a checkpoint's manifest.

    Raises:
        BadCheckpoint: there is none, or it is not whole.
    """
    try:
        text = (checkpoint / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise BadCheckpoint(f"it has no {MANIFEST}, so it was not written to its end") from None
    except OSError as error:
        raise BadCheckpoint(f"{MANIFEST} cannot be read: {error.strerror}") from None
    try:
        return CheckpointManifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise BadCheckpoint(f"{MANIFEST} is not usable: {problem['msg']}") from None


def check_files(checkpoint: Path, files: Iterable[tuple[str, FileDigest]]) -> None:
    """Compare files with what the manifest says of them.

    Raises:
        BadCheckpoint: one is missing, too short or long, or holds other bytes.
    """
    for name, expected in files:
        try:
            size = (checkpoint / name).stat().st_size
            if size != expected.size:
                raise BadCheckpoint(f"{name} has {size} bytes, not {expected.size}")
            found = digest_of(checkpoint / name)
        except OSError as error:
            raise BadCheckpoint(f"{name} cannot be read: {error.strerror}") from None
        if found.blake3 != expected.blake3:
            raise BadCheckpoint(f"{name} does not hold the bytes that were written")


def digest_of(path: Path) -> FileDigest:
    """Size and digest of a file as it is now."""
    return FileDigest(size=path.stat().st_size, blake3=blake3().update_mmap(path).hexdigest())
