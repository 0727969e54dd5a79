"""Why something could not be written to disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from services.disk import NO_ROOM, has_room


@dataclass(frozen=True, kw_only=True)
class WriteProblem:
    """It is false when all was written.

    Attributes:
        text: for people.
        no_room: the disk was full.
    """

    text: str = ""
    no_room: bool = False

    def __bool__(self) -> bool:
        return bool(self.text)

    @classmethod
    def of_file(cls, error: OSError) -> Self:
        """What the file system said."""
        return cls(text=f"{error.strerror}: {error.filename}", no_room=error.errno in NO_ROOM)

    @classmethod
    def of_tensors(cls, error: BaseException, folder: Path) -> Self:
        """What the writer of tensors said, which for want of room says many things."""
        full = isinstance(error, OSError) and error.errno in NO_ROOM
        return cls(text=str(error), no_room=full or not has_room(folder))
