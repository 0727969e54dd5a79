"""One open workspace: its calls run one after the other, and it ends with a reason."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from services.observability.log import Log
from services.observability.metrics import WorkspaceMetrics
from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import (
    CallResult,
    EndReason,
    ExecCall,
    FileEntry,
    OpenWorkspace,
    PythonCall,
)
from services.reward_service.workspaces.errors import JailLost, WorkspaceFault, WorkspaceGone
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.running.output import OnOutput
from services.reward_service.workspaces.running.programs import Programs
from services.reward_service.workspaces.running.turns import Turns

_log = Log("workspaces")
_T = TypeVar("_T")
_CALLS_END_S = 60.0
_DISK_SLACK = 256 << 20
"""Bytes by which the files of a workspace may be larger than its disk after a call that was ended
for it: where no file system bounds them, they are looked at now and then only."""


class Workspace:
    """A started jail and what is known of it; made by `Workspaces`.

    Attributes:
        id: names it; nobody can guess it.
        owner: name of the API key that opened it.
        spec: what it was opened with.
        opened_at: seconds since 1970.
        calls: how many it has had.
    """

    def __init__(
        self,
        workspace_id: str,
        owner: str,
        spec: OpenWorkspace,
        jail: WorkspaceJail,
        turns: Turns,
        programs: Programs,
    ) -> None:
        self.id, self.owner, self.spec, self.jail = workspace_id, owner, spec, jail
        self.opened_at, self.calls = time.time(), 0
        self.reason: EndReason | None = None
        self._turns, self._programs = turns, programs
        self._files = programs.files
        self._closing: asyncio.Task[None] | None = None
        self._ends: list[Callable[[Workspace], None]] = []
        self._loop = asyncio.get_running_loop()
        self._opened = self._used = self._loop.time()
        self._total = self._loop.call_later(spec.total_s, self._end, "total")
        self._idle = self._loop.call_later(spec.idle_s, self._end, "idle")
        self._loop.add_reader(jail.handle, self._end, "lost")
        turns.on_idle = self._on_idle

    @property
    def tier(self) -> Literal["A", "B"]:
        """`A` with namespaces, `B` without."""
        return self.jail.tier

    @property
    def idle_left_s(self) -> float:
        """Seconds until it is closed if no call comes."""
        if self._turns.busy:
            return self.spec.idle_s
        return max(0.0, self._used + self.spec.idle_s - self._loop.time())

    @property
    def total_left_s(self) -> float:
        """Seconds until it is closed."""
        return max(0.0, self._opened + self.spec.total_s - self._loop.time())

    @property
    def disk_used(self) -> int:
        """Bytes of its files at the end of its last call."""
        return self.jail.disk[0]

    @property
    def memory_used(self) -> int:
        """Bytes that its processes held when they were last looked at."""
        return self._programs.memory

    def when_ended(self, tell: Callable[["Workspace"], None]) -> None:
        """Have `tell` called once nothing of it is left."""
        self._ends.append(tell)

    async def exec(self, call: ExecCall, on_output: OnOutput | None = None) -> CallResult:
        """Run a program to its end.

        Raises:
            InvalidInput, QuotaFull, WorkspaceGone, WorkspaceFault: it was not run to an end.
        """
        return await self._call("exec", lambda: self._programs.exec(call, on_output))

    async def python(self, call: PythonCall, on_output: OnOutput | None = None) -> CallResult:
        """Run a cell in the kept interpreter.

        Raises:
            InvalidInput, QuotaFull, WorkspaceGone, WorkspaceFault: it was not run to an end.
        """
        return await self._call("python", lambda: self._programs.python(call, on_output))

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file and the folders above it.

        Raises:
            InvalidInput: it cannot be written there, or the disk is full.
        """
        await self.write_all([(path, content, mode)])

    async def write_all(self, entries: Sequence[tuple[str, bytes, int]]) -> None:
        """Write files of a path, a content and a mode."""
        await self._call("write", lambda: self._files.write(entries))

    async def unpack(self, folder: str, archive: bytes, kind: str) -> int:
        """Unpack a `tar`, `tar.gz` or `zip` into a folder; the number of its entries.

        Raises:
            InvalidInput: it is broken, too large, or has an entry that no workspace may have.
        """
        return await self._call("unpack", lambda: self._files.unpack(folder, archive, kind))

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """The content of a plain file.

        Raises:
            InvalidInput: there is none (`NoSuchFile`), or it is larger than that.
        """
        return await self._call("read", lambda: self._files.read(path, max_bytes))

    async def archive(self, path: str, max_bytes: int | None = None) -> bytes:
        """A folder or file as a tar.

        Args:
            path: `.` for all files.
            max_bytes: of the tar; by default those of any other transfer.

        Raises:
            InvalidInput: there is none (`NoSuchFile`), or it is too large.
        """
        return await self._call("archive", lambda: self._files.archive(path, max_bytes))

    async def list(self, path: str) -> list[FileEntry]:
        """The entries of a folder, or of a file.

        Raises:
            InvalidInput: there is none (`NoSuchFile`), or there are too many.
        """
        return await self._call("list", lambda: self._files.list(path))

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it.

        Raises:
            InvalidInput: there is none (`NoSuchFile`).
        """
        await self._call("remove", lambda: self._files.remove(path))

    async def contents(self, max_bytes: int) -> tuple[bytes, tuple[PythonCall, ...]]:
        """All files as a tar, and the cells that made the interpreter's variables.

        Raises:
            InvalidInput: the tar is larger than that.
        """

        async def contents() -> tuple[bytes, tuple[PythonCall, ...]]:
            return await self._files.archive(".", max_bytes), self._programs.kept_cells()

        return await self._call("snapshot", contents)

    async def become(self, archive: bytes, cells: Sequence[PythonCall]) -> None:
        """Take the files of a tar that `contents` made, and run cells again; what these change in
        files is undone.

        Raises:
            InvalidInput: a cell fails now.
            WorkspaceFault: the interpreter died after a cell, and its variables with it.
        """
        await self._restore(archive)
        for number, cell in enumerate(cells, 1):
            result = await self.python(cell)
            if result.status != "ok":
                said = (result.traceback or result.status).strip().splitlines()[-1]
                fix = f"Its cell {number} failed when it was run again: {said}."
                raise InvalidInput("snapshot", cell.code[:80], fix)
            if result.interpreter_restarted:
                raise WorkspaceFault(f"The interpreter died after cell {number} ran again.")
        if cells:
            await self.remove(".")
            await self._restore(archive)

    async def _restore(self, archive: bytes) -> None:
        """Unpack a tar that `contents` made."""
        await self._call("unpack", lambda: self._files.unpack(".", archive, "tar", own=True))

    async def close(self, reason: EndReason) -> None:
        """End everything of it; returns when nothing is left. Safe to call again."""
        self._end(reason)
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def _call(self, kind: str, run: Callable[[], Awaitable[_T]]) -> _T:
        self._idle.cancel()
        self.calls += 1
        status = "error"
        try:
            result = await self._turns.run(lambda: self._run(run))
            status = result.status if isinstance(result, CallResult) else "ok"
            return result
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except InvalidInput:
            status = "refused"
            raise
        finally:
            WorkspaceMetrics.calls.inc(1, {"kind": kind, "status": status})

    async def _run(self, run: Callable[[], Awaitable[_T]]) -> _T:
        try:
            result = await run()
        except OSError as error:
            raise WorkspaceFault(f"{type(error).__name__}: {error}") from error
        except JailLost as error:
            if self.reason is None:
                _log.warning("workspace_lost", workspace=self.id, cause=str(error))
                self._end("lost")
            raise WorkspaceGone(self.id, self.reason or "lost") from error
        if self.disk_used > (self.spec.disk_mb << 20) + _DISK_SLACK:
            self._end("disk")
        return result

    def _on_idle(self) -> None:
        self._used = self._loop.time()
        if self.reason is None:
            self._idle.cancel()
            self._idle = self._loop.call_later(self.spec.idle_s, self._end, "idle")

    def _end(self, reason: EndReason) -> None:
        """Begin to close it; the loop's own calls end here."""
        if self._closing is None:
            self.reason = reason
            self._closing = asyncio.ensure_future(self._close())

    async def _close(self) -> None:
        assert self.reason is not None
        reason = self.reason
        self._loop.remove_reader(self.jail.handle)
        self._total.cancel()
        self._idle.cancel()
        self._turns.stop(lambda: WorkspaceGone(self.id, reason))
        await self.jail.end()
        await self._turns.ended(_CALLS_END_S)
        self._programs.close()
        await self.jail.release()
        WorkspaceMetrics.ends.inc(1, {"reason": reason})
        for tell in self._ends:
            tell(self)
