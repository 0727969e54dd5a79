"""Where a compiler or an interpreter is installed, and where a jail shows it."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
_ELF = b"\x7fELF"
_PLACE = "/tools"
"""Where a jail with namespaces has what is installed elsewhere: no `/home`, no `/root`."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """An installed executable.

    Attributes:
        path: its real path.
        folder: of its installation, if that is outside the system's folders, which every jail
            shows.
        links: folders that files of the installation are links into.
    """

    path: str
    folder: str = ""
    links: tuple[str, ...] = ()

    def inside(self, *, namespaces: bool) -> "Tool":
        """The same as a jail has it."""
        if not namespaces or not self.folder:
            return self
        return Tool(path=_PLACE + self.path, folder=_PLACE + self.folder, links=self.links)

    @property
    def home(self) -> str:
        """The folder above `bin`."""
        return str(Path(self.path).parents[1])

    @property
    def folders(self) -> tuple[str, ...]:
        """All that has to be shown beside the system's folders."""
        return (*((self.folder,) if self.folder else ()), *self.links)

    def mounts(self) -> list[tuple[str, str]]:
        """Folders of the host, and their places in a jail with namespaces."""
        return list(zip(self.folders, self.inside(namespaces=True).folders, strict=True))


def on_path(name: str) -> Tool | None:
    """The executable of this name on the PATH; None if there is none."""
    found = shutil.which(name)
    return None if found is None else tool_at(found)


def program_on_path(name: str) -> Tool | None:
    """The same, if it is a program and no script that would have to be read first."""
    tool = on_path(name)
    if tool is None:
        return None
    try:
        with open(tool.path, "rb") as file:
            return tool if file.read(len(_ELF)) == _ELF else None
    except OSError:
        return None


def tool_at(path: str) -> Tool:
    """The tool of a path, links resolved.

    One outside the system's folders is taken for a part of the folder above its `bin`.
    """
    tool = Tool(path=os.path.realpath(path))
    if any(Path(tool.path).is_relative_to(folder) for folder in _SYSTEM):
        return tool
    return Tool(path=tool.path, folder=tool.home)
