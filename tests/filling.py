"""Takes all the room of a disk, and gives it back."""

from pathlib import Path


def fill(disk: Path, *, but: int = 0) -> Path:
    """Write until nothing more fits, then leave so many bytes; remove the file to undo it."""
    path = disk / "filling"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
        file.truncate(file.tell() - but)
    return path
