"""Workspaces: jails whose files and interpreter stay between the calls of one session."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.protocol.strict import StrictModel, wrong_field

PATH_BYTES, NAME_BYTES, PATH_DEPTH = 4096, 255, 64
"""Longest path and name of a file in a workspace, in bytes of UTF-8, and most folders above it."""

Status = Literal[
    "ok",
    "failed",
    "time_limit",
    "memory_limit",
    "output_limit",
    "disk_limit",
    "process_limit",
]
"""How a call ended. `failed`: an exit status that is not 0, or an exception. A limit is named where
the call was ended by it, or failed because of it."""

EndReason = Literal["closed", "idle", "total", "lost", "memory", "disk", "shutdown"]
"""Why a workspace is gone: its owner closed it, it had no call for too long, it was open for too
long, its jail died or its replica is gone, it held more memory or disk than it may between two
calls, or the service ended."""

ArchiveKind = Literal["tar", "tar.gz", "zip"]


def file_path(path: str) -> str:
    """`path` as workspaces use it: relative to the workspace, `.` for the workspace itself.

    Raises:
        ValueError: no file of a workspace can have this path.
    """
    if "\0" in path:
        raise ValueError("a path has no NUL character")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ValueError("a path is text that UTF-8 can hold") from None
    if size > PATH_BYTES:
        raise ValueError(f"a path has at most {PATH_BYTES} bytes")
    pure = PurePosixPath(path)
    if pure.is_absolute() and pure.parts[1:2] == ("work",):
        pure = PurePosixPath(*pure.parts[2:])  # /work is the workspace, where it has a mount
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError("a path stays in the workspace: it is relative and has no `..`")
    if len(pure.parts) > PATH_DEPTH:
        raise ValueError(f"a path has at most {PATH_DEPTH} parts")
    if any(len(part.encode()) > NAME_BYTES for part in pure.parts):
        raise ValueError(f"a name has at most {NAME_BYTES} bytes")
    return str(pure)


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError(f"{name!r} cannot be an environment variable")
        _utf8(name + value)
    return env


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text that UTF-8 cannot hold (a lone surrogate)") from None
    return text


def _argument(text: str) -> str:
    if "\0" in text:
        raise ValueError("no argument of a program has a NUL character")
    return _utf8(text)


FilePath = Annotated[str, AfterValidator(file_path)]
RootFolder = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Text = Annotated[str, AfterValidator(_utf8)]
Argument = Annotated[str, AfterValidator(_argument)]


class OpenWorkspace(StrictModel):
    """A workspace to open.

    Attributes:
        files: UTF-8 texts that are written before the first call, by path.
        snapshot: the id of a snapshot to begin as; `files` are written over its files.
        memory_mb: memory of all its processes together, MiB; also the most of each.
        disk_mb: what its files may take, MiB.
        processes: most processes and threads at a time.
        idle_s: closed after so many seconds without a call.
        total_s: closed so many seconds after it was opened.
        network: addresses, `host:port`, that its programs may reach through the proxy; empty for
            no network.
        root_folders: names of its folders that programs find at the root as well, such as `app` at
            `/app`; they are there from the start. Tier A alone has them.
    """

    files: dict[FilePath, Text] = Field(default_factory=dict)
    snapshot: str | None = None
    memory_mb: int = Field(default=512, ge=64, le=65536)
    disk_mb: int = Field(default=256, ge=1, le=65536)
    processes: int = Field(default=64, ge=8, le=1024)
    idle_s: float = Field(default=600.0, gt=0, le=86400)
    total_s: float = Field(default=3600.0, gt=0, le=604800)
    network: list[str] = Field(default_factory=list, max_length=64)
    root_folders: list[RootFolder] = Field(default_factory=list, max_length=32)


class ExecCall(StrictModel):
    """One program to run; exactly one of `argv` and `shell`.

    Attributes:
        argv: the program and its arguments.
        shell: a line for `/bin/sh -c`.
        stdin: what it can read; then its standard input ends.
        cwd: the folder it starts in.
        env: environment variables besides those of every call.
        wall_s: seconds; waiting for a free place is no part of them.
        cpu_s: processor seconds of all its processes together.
        memory_mb: memory of all its processes together, MiB; None: the workspace's.
        output_kb: bytes of standard output and error together, KiB; more ends the call.
        stream: send the output as it comes.
    """

    argv: list[Argument] | None = Field(default=None, min_length=1, max_length=4096)
    shell: Argument | None = Field(default=None, min_length=1)
    stdin: Text = ""
    cwd: FilePath = "."
    env: Annotated[dict[str, str], AfterValidator(_variables)] = Field(default_factory=dict)
    wall_s: float = Field(default=30.0, gt=0, le=3600)
    cpu_s: float = Field(default=30.0, gt=0, le=3600)
    memory_mb: int | None = Field(default=None, ge=16, le=65536)
    output_kb: int = Field(default=64, ge=1, le=65536)
    stream: bool = False

    @model_validator(mode="after")
    def _one_command(self) -> Self:
        if (self.argv is None) == (self.shell is None):
            value = "(neither)" if self.argv is None else "(both)"
            raise wrong_field("argv", value, "Give one of argv and shell")
        return self


class PythonCall(StrictModel):
    """One cell for the kept interpreter, whose variables stay until it is restarted.

    Attributes:
        code: Python source. The value of a last expression is the result.
        wall_s: seconds; waiting for a free place is no part of them.
        cpu_s: processor seconds.
        output_kb: bytes of standard output and error together, KiB; more ends the call.
        stream: send the output as it comes.
        restart: begin with a new interpreter.
    """

    code: Text
    wall_s: float = Field(default=30.0, gt=0, le=3600)
    cpu_s: float = Field(default=30.0, gt=0, le=3600)
    output_kb: int = Field(default=64, ge=1, le=65536)
    stream: bool = False
    restart: bool = False


class Picture(StrictModel):
    """A picture that a cell showed.

    Attributes:
        mime: `image/png`, `image/jpeg` or `image/svg+xml`.
        base64: its bytes.
    """

    mime: Literal["image/png", "image/jpeg", "image/svg+xml"]
    base64: str


class CallResult(StrictModel):
    """How a call ended.

    Attributes:
        status: `ok`, `failed`, or the limit that ended it.
        exit_code: the exit status, minus the signal's number if a signal ended the program; None
            for a cell whose interpreter goes on.
        stdout: the beginning of what it wrote, as UTF-8; a byte that is not, as U+FFFD.
        stderr: likewise.
        wall_s: seconds that it took.
        cpu_s: processor seconds that it took.
        stdout_bytes: how many it wrote; more than `stdout` has if that was cut.
        stderr_bytes: likewise.
        result: `repr` of a cell's last expression, at most `output_kb` and 512 KiB of it; None if
            there was none or it was None.
        traceback: of the exception that ended a cell.
        pictures: what the cell showed.
        interpreter_restarted: the variables of earlier cells are gone.
    """

    status: Status
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    result: str | None = None
    traceback: str | None = None
    pictures: list[Picture] = Field(default_factory=list)
    interpreter_restarted: bool = False


class FileEntry(StrictModel):
    """One entry of a folder of a workspace.

    Attributes:
        path: relative to the workspace.
        kind: what it is.
        bytes: its size.
        mode: permission bits.
    """

    path: str
    kind: Literal["file", "folder", "link", "other"]
    bytes: int
    mode: int


class ForkCall(StrictModel):
    """How many workspaces to open that begin as this one.

    Attributes:
        n: their number.
    """

    n: int = Field(default=1, ge=1, le=256)


class SnapshotInfo(StrictModel):
    """A snapshot that was taken.

    Attributes:
        snapshot: its id, for `OpenWorkspace.snapshot`.
        bytes: what it takes in the service's memory.
        cells: how many Python cells a workspace that begins as it runs again.
    """

    snapshot: str
    bytes: int
    cells: int = 0


class WorkspaceState(StrictModel):
    """What is known of an open workspace.

    Attributes:
        id: for the paths of its calls.
        opened_at: seconds since 1970.
        calls: how many it has had.
        idle_left_s: seconds until it is closed if no call comes.
        total_left_s: seconds until it is closed.
        disk_used: bytes of its files at the end of its last call.
        memory_used: bytes that its processes held at the end of its last call.
        tier: `A` with namespaces, `B` without.
        spec: what it was opened with, its files and its snapshot left out.
    """

    id: str
    opened_at: float
    calls: int
    idle_left_s: float
    total_left_s: float
    disk_used: int
    memory_used: int
    tier: Literal["A", "B"]
    spec: dict[str, Any] = Field(default_factory=dict)
