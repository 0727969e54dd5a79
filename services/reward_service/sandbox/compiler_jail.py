"""Runs a compiler once, in a jail of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.protocol.reward.reward_service import CompileRecord
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import (
    BUILD,
    Jail,
    bound,
    jailed_sources,
    own_user_id,
)
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.languages.language import Toolchain
from services.reward_service.languages.tool import Tool
from services.reward_service.sandbox.execution import SlotFailed, SlotLost, sealed_file
from services.reward_service.sandbox.launch import filled

_SYSTEM_FOLDERS = ("/usr", "/bin", "/lib", "/lib64", "/lib32")
_JAIL_FOLDERS = ("/build", "/header")
"""Where a jail with namespaces has the two folders."""
_ERROR_BYTES, _CLOSE_S = 4096, 60.0
_WALL_FACTOR, _WALL_S = 10.0, 60.0
"""Wall seconds for each processor second of a compilation, and in addition: processor time is the
limit, and only a compiler that hangs takes longer, however busy the machine is."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """One run of a compiler.

    Attributes:
        toolchain: whose compiler it is.
        flags: its arguments; `{folder}` in them is the folder of the precompiled header.
        source: what it reads from its standard input.
        output: the file that it writes.
        header: the folder of the precompiled header; None to run without one.
        cpu_s: processor seconds.
        output_mb: largest output, MiB.
    """

    toolchain: Toolchain
    flags: tuple[str, ...]
    source: bytes
    output: str
    header: Path | None
    cpu_s: int
    output_mb: int


class CompilerJail:
    """Starts a jail for every run.

    Args:
        config: memory of a compilation, and the time that a jail may take to start.
        jail: how jails are started here.
        folder: where working folders are made; the jails' users can look into it.
    """

    def __init__(self, config: RewardServiceConfig, jail: Jail, folder: Path) -> None:
        self._config, self._jail, self._folder = config, jail, folder

    async def run(self, build: Build) -> tuple[bytes | None, CompileRecord]:
        """Run the compiler.

        Returns:
            Its output, None if there is none that can be used, and the record, with the
            beginning of what it wrote to its standard error.

        Raises:
            SlotFailed: it was never run.
            SlotLost: its jail ended while it ran.
        """
        work = Path(tempfile.mkdtemp(prefix="build-", dir=self._folder))
        is_header = build.header is None and build.toolchain.header
        name = build.toolchain.header_file if is_header else build.toolchain.source_file
        if name:
            (work / name).write_bytes(build.source)
        user_id = own_user_id() if os.geteuid() == 0 else None
        try:
            if user_id is not None:
                os.chown(work, user_id, user_id)
            return await self._start(build, work, self._order(build, work, user_id))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _order(self, build: Build, work: Path, user_id: int | None) -> dict[str, Any]:
        tool = _tool(build).inside(namespaces=self._jail.namespaces)
        calls = build.toolchain.calls
        seccomp = build_filter("compiler", sets=calls)
        folder, header = _JAIL_FOLDERS if self._jail.namespaces else (str(work), str(build.header))
        is_header = build.header is None
        values = {"{folder}": folder if is_header else header, "{home}": tool.home}
        more = {name: filled(text, values) for name, text in build.toolchain.environment}
        return {
            "command": [tool.path, *(filled(flag, values) for flag in build.flags)],
            "environment": {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "LC_ALL": "C", **more},
            "folder": folder,
            "pack": (build.toolchain.packed, build.output) if is_header else ("", ""),
            "paths": {
                "readable": [] if build.header is None else [header],
                "writable": ["/dev/null"],
                "executable": [*_SYSTEM_FOLDERS, *tool.folders],
                "trees" if "in a tree" in calls else "folders": [folder],
            },
            "user_id": user_id,
            "cpu_s": build.cpu_s,
            "memory": self._config.compile_memory_mb << 20,
            "output": build.output_mb << 20,
            "processes": self._jail.processes,
            "filter": (seccomp.program.hex(), seccomp.own_pid_at),
        }

    async def _start(
        self, build: Build, work: Path, order: dict[str, Any]
    ) -> tuple[bytes | None, CompileRecord]:
        mounts = ["--bind", str(work), _JAIL_FOLDERS[0]]
        mounts += [] if build.header is None else ["--ro-bind", str(build.header), _JAIL_FOLDERS[1]]
        mounts += (word for places in _tool(build).mounts() for word in bound(*places))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        source, errors = sealed_file(build.source), os.memfd_create("errors", os.MFD_CLOEXEC)
        started = time.monotonic()
        process: subprocess.Popen[bytes] | None = None
        try:
            with theirs:
                process = self._jail.start(theirs, "millrace-build", errors, mounts=mounts)
            ours.send(json.dumps(jailed_sources(BUILD)).encode())
            socket.send_fds(ours, [json.dumps(order).encode()], [source, errors])
            reply = await _reply(ours, self._config.slot_start_s) or {}
            if confined := "confined" in reply:
                reply = await _last_reply(ours, _WALL_FACTOR * build.cpu_s + _WALL_S)
            text = os.pread(errors, _ERROR_BYTES, 0).decode(errors="replace")
            if not confined or "failed" in reply:
                raise SlotFailed(f"the compiler's jail: {reply.get('failed', text[-200:])}")
            exit_code = reply.get("exit", -signal.SIGKILL)
            output_bytes = build.output_mb << 20
            output = await asyncio.to_thread(_plain_file, work / build.output, output_bytes)
            ok = exit_code == 0 and output is not None
            message = "the compiler was stopped at a limit; " if exit_code < 0 else ""
            record = CompileRecord(
                ok=ok,
                cpu_ms=1000 * reply.get("cpu_s", 0.0),
                wall_ms=1000 * (time.monotonic() - started),
                cached=False,
                message="" if ok else (message + text).strip()[:500],
            )
            return (output if ok else None), record
        except OSError as error:
            raise SlotFailed(f"the compiler's jail: {error}") from error
        finally:
            ours.close()
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(_CLOSE_S)
            os.close(source)
            os.close(errors)


def _tool(build: Build) -> Tool:
    """The compiler as this machine has it.

    Raises:
        SlotFailed: it is not installed.
    """
    tool = build.toolchain.find(build.toolchain.compiler)
    if tool is None:
        raise SlotFailed(f"{build.toolchain.compiler} is not here")
    return tool


async def _reply(control: socket.socket, timeout_s: float) -> dict[str, Any] | None:
    """The next message, empty if the jail hung up; None if there was none in time.

    Read from the plain socket: `Control` drops a message that comes before it is waited for, and
    a jail may send its last one at once.
    """
    try:
        async with asyncio.timeout(timeout_s):
            message = await asyncio.get_running_loop().sock_recv(control, 1 << 16)
    except TimeoutError:
        return None
    return json.loads(message) if message else {}


async def _last_reply(control: socket.socket, timeout_s: float) -> dict[str, Any]:
    """The last message of a jail in which a source was compiled, empty if it came too late.

    Raises:
        SlotLost: the jail ended without one.
    """
    try:
        reply = await _reply(control, timeout_s)
    except (OSError, ValueError) as error:
        raise SlotLost(f"the compiler's jail: {type(error).__name__}: {error}") from error
    if reply is None:
        return {}
    if not reply:
        raise SlotLost("the compiler's jail hung up")
    return reply


def _plain_file(path: Path, max_bytes: int) -> bytes | None:
    """The content of a file that the compiler left; a link or anything odd counts as none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or not 0 < facts.st_size <= max_bytes:
            return None
        return file.read(max_bytes)
