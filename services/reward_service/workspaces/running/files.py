"""Orders about files to a workspace's jail, and what they come to."""

import json
import os
from collections.abc import Sequence
from typing import Any

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import FileEntry, file_path
from services.reward_service.sandbox.execution import sealed_file
from services.reward_service.workspaces.errors import JailLost, NoSuchFile
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail

_WALL_S, _GRACE_S = 120.0, 60.0
_MEMORY = 512 << 20
_MAX_REPORT = 16 << 20
_SHOWN = 100
_LOOKS = ("read", "list", "archive")

MAX_ENTRIES = 50_000
"""Of an archive that is unpacked."""

_FIXES = {
    "link": "A link stands in its way: give the path without links.",
    "outside": "It leads out of the workspace: give a path below it.",
    "not_a_file": "It is not a plain file: devices, pipes and folders cannot be read or written.",
    "denied": "The workspace's user may not do that: check the modes of the file and its folder.",
    "busy": "A program of this file is running: remove the file first.",
    "full": "The workspace's disk is full: remove files, or open one with a larger disk_mb.",
    "too_large": "It is larger than may be read at once: read it in parts, with a program.",
    "too_many": "The folder has more entries than are listed: look at it with a program.",
    "too_many_entries": f"It has more than {MAX_ENTRIES} entries: unpack parts of it.",
    "too_much": "Unpacked it is larger than the space that is left: remove files first.",
    "too_deep": "It is deeper than 64 folders: move it up.",
    "name": "No file can have this name: give at most 255 bytes without NUL.",
    "memory": "It needs more memory than may be used for it.",
    "archive": "This is no archive of the kind that was said, or a part of it is broken.",
    "device": "The archive has an entry that is no file, folder or link: leave it out.",
    "encrypted": "The archive is encrypted: give one that is not.",
}


class Files:
    """File orders to one jail; all paths are checked here and again in the jail."""

    def __init__(self, jail: WorkspaceJail, max_bytes: int) -> None:
        self._jail, self._max_bytes = jail, max_bytes

    async def write(self, entries: Sequence[tuple[str, bytes, int]]) -> None:
        """Write files of a path, a content and a mode, and the folders above them.

        Raises:
            InvalidInput: a path cannot be written.
        """
        order = {
            "do": "write",
            "path": entries[0][0] if len(entries) == 1 else ".",
            "entries": [(_checked(path), len(content), mode) for path, content, mode in entries],
        }
        content = b"".join(content for _, content, _ in entries)
        if len(content) > self._jail.disk[1]:
            raise _refusal("full", "." if len(entries) > 1 else entries[0][0])
        await self._call(order, content)

    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a plain file.

        Raises:
            InvalidInput: there is none, or it is larger than that.
        """
        order = {"do": "read", "path": _checked(path), "max_bytes": min(max_bytes, self._max_bytes)}
        return (await self._call(order))[1]

    async def list(self, path: str) -> list[FileEntry]:
        """The entries of a folder by name, or the entry of a file.

        Raises:
            InvalidInput: there is none, or there are too many.
        """
        outcome, _ = await self._call({"do": "list", "path": _checked(path)})
        return [
            FileEntry(path=name, kind=kind, bytes=size, mode=mode)
            for name, kind, size, mode in outcome["entries"]
        ]

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it.

        Raises:
            InvalidInput: there is none.
        """
        await self._call({"do": "remove", "path": _checked(path)})

    async def unpack(self, folder: str, archive: bytes, kind: str, *, own: bool = False) -> int:
        """Unpack an archive into a folder; the number of its entries.

        Args:
            folder: where.
            archive: what a client sent, or with `own` what `archive` made of a workspace: links in
                it lead wherever programs let them lead.
            kind: `tar`, `tar.gz` or `zip`.
            own: see `archive`.

        Raises:
            InvalidInput: it is broken, too large, or has an entry that no workspace may have.
        """
        order = {
            "do": "unpack",
            "path": _checked(folder),
            "kind": kind,
            "own": own,
            "max_bytes": self._jail.disk[1],
            "max_entries": MAX_ENTRIES,
        }
        return int((await self._call(order, archive))[0]["entries"])

    async def archive(self, path: str, max_bytes: int | None = None) -> bytes:
        """A folder or a file as a tar archive.

        Raises:
            InvalidInput: there is none, or it is larger than that.
        """
        order = {"do": "archive", "path": _checked(path), "max_bytes": max_bytes or self._max_bytes}
        return (await self._call(order))[1]

    async def _call(self, order: dict[str, Any], content: bytes = b"") -> tuple[Any, bytes]:
        made = [os.memfd_create("workspace", os.MFD_CLOEXEC) for _ in range(3)]
        output, errors, report = made
        given = sealed_file(content)
        try:
            reply = await self._jail.call(
                {
                    "do": "files",
                    "changes": order["do"] not in _LOOKS,
                    "files": order,
                    "memory": _MEMORY,
                    "file_size": max(self._max_bytes, order.get("max_bytes", 0)) + _MAX_REPORT,
                    "wall_s": _WALL_S,
                    "cpu_s": _WALL_S,
                },
                [given, output, errors, report],
                _WALL_S + _GRACE_S,
            )
            outcome = _outcome(report)
            if outcome is None:
                said = os.pread(errors, 1000, 0).decode(errors="replace").strip()
                raise _no_outcome(order, reply, said)
            if "refused" in outcome:
                if outcome["refused"] == "full":
                    self._jail.check_node()
                raise _refusal(outcome["refused"], outcome["path"])
            return outcome, os.pread(output, os.fstat(output).st_size, 0)
        finally:
            for descriptor in (given, *made):
                os.close(descriptor)


def _checked(path: str) -> str:
    try:
        return file_path(path)
    except ValueError as error:
        raise InvalidInput("path", path, f"{error}.".capitalize()) from None


def _outcome(report: int) -> Any:
    content = os.pread(report, _MAX_REPORT, 0)
    try:
        return json.loads(content)
    except ValueError:
        return None


def _refusal(kind: str, path: str) -> InvalidInput:
    if kind == "missing":
        return NoSuchFile("path", path, "The workspace has no such file: list its folder.")
    return InvalidInput("path", path[:_SHOWN], _FIXES[kind])


def _no_outcome(order: dict[str, Any], reply: dict[str, Any], said: str) -> Exception:
    if reply["killed"] is not None or reply["exit_code"]:
        fix = f"It could not be finished in {_WALL_S:g} s and the workspace's limits."
        return InvalidInput("path", order["path"], fix)
    return JailLost(f"a file order had no outcome: {said[-300:]}")
