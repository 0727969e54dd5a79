"""Why something could not be written to disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from services.disk import DISK_FULL, has_space


@dataclass(frozen=True, kw_only=True)
class WriteProblem:
    """It is false when all was written.

    Attributes:
        text: for people.
        disk_full: the disk was full.
    """

    text: str = ""
    disk_full: bool = False

    def __bool__(self) -> bool:
        return bool(self.text)

    @classmethod
    def of_file(cls, error: OSError) -> Self:
        """What the file system said."""
        return cls(text=f"{error.strerror}: {error.filename}", disk_full=error.errno in DISK_FULL)

    @classmethod
    def of_tensors(cls, error: BaseException, folder: Path) -> Self:
        """What the writer of tensors said, which for want of room says many things."""
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        return cls(text=str(error), disk_full=full or not has_space(folder))
