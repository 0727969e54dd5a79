"""Compiles answers: a jail for every compilation, headers compiled once, programs remembered."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import weakref
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.reward_service import CompileRecord
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import BUILD, Jail, jailed_sources, own_user_id
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.languages import Language
from services.reward_service.languages.language import Toolchain
from services.reward_service.sandbox.execution import (
    Binary,
    SandboxCrashed,
    SlotFailed,
    SlotLost,
    sealed_file,
)
from services.reward_service.sandbox.header_cache import HeaderCache
from services.reward_service.sandbox.scratch_folder import ScratchFolder

_log = Log("reward_service")

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32")
_INSIDE = ("/build", "/header")
"""Where a jail with namespaces has the two folders."""
_ERROR_BYTES, _CLOSE_S = 4096, 60.0
_HEADER_CPU_S, _HEADER_MB = 60, 1024
_WALL_FACTOR, _WALL_S = 10.0, 60.0
"""Wall seconds for each processor second of a compilation, and in addition: processor time is the
limit, and only a compiler that hangs takes longer, however busy the machine is."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What became of a source: a program, or only a record of why not."""

    binary: Binary | None
    record: CompileRecord


class Compiler:
    """Turns sources into programs in a jail of the sandbox's tier.

    Args:
        config: limits of a compilation and of the memory for programs.
        jail: how jails are started here.
    """

    def __init__(self, config: RewardServiceConfig, jail: Jail) -> None:
        self._config, self._jail = config, jail
        self._programs: LRUCache[str, Compiled] = LRUCache(
            config.program_cache_mb << 20, getsizeof=_size
        )
        self._versions: dict[str, str] = {}
        self._header_lock = asyncio.Lock()
        kept = config.header_cache_dir
        self._kept = None if kept is None else HeaderCache(kept)
        if config.toolchain_dir is None:
            scratch = ScratchFolder("millrace-toolchain-")
            self._folder = scratch.path
            weakref.finalize(self, scratch.remove)
        else:
            self._folder = Path(config.toolchain_dir)
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._folder.chmod(0o755)  # the jails' users look into it

    def identity(self, language: Language) -> str:
        """What of a toolchain can change a verdict: its version and flags.

        Raises:
            SlotFailed: it is not installed.
        """
        toolchain = language.toolchain
        assert toolchain is not None, "only for languages that are compiled"
        if language.name not in self._versions:
            path = shutil.which(toolchain.compiler)
            if path is None:
                missing = f"{language.name} needs {toolchain.compiler}, which is not here"
                raise SlotFailed(f"{missing}: `apt-get install {toolchain.compiler}`")
            command = [path, *toolchain.version_flags]
            done = subprocess.run(command, capture_output=True, timeout=_CLOSE_S, check=False)
            parts = (done.stdout.decode(errors="replace"), *toolchain.flags, toolchain.header)
            self._versions[language.name] = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self._versions[language.name]

    async def compile(self, source: str, language: Language) -> Compiled:
        """A program for a source; identical sources are compiled once.

        A jail that is lost is replaced once, as the slots of answers are.

        Raises:
            SandboxCrashed: the source lost its jail twice.
            SlotFailed: no compiler could be run, which is nothing the source did.
        """
        content = source.encode("utf-8", "backslashreplace")
        key = hashlib.sha256(self.identity(language).encode() + content).hexdigest()
        known = self._programs.get(key)
        if known is not None:
            return replace(known, record=replace(known.record, cached=True))
        compiled = await self._compile(content, language)
        result = "ok" if compiled.record.ok else "failed"
        RewardMetrics.compiles.inc(1, {"language": language.name, "result": result})
        with contextlib.suppress(ValueError):  # it is larger than the whole cache
            self._programs[key] = compiled
        return compiled

    async def _compile(self, content: bytes, language: Language) -> Compiled:
        toolchain = language.toolchain
        assert toolchain is not None
        header = await self._header(toolchain, self.identity(language))
        flags = [*toolchain.flags]
        if header is not None:
            inside = _INSIDE[1] if self._jail.namespaces else str(header)
            flags = [flag.replace("{folder}", inside) for flag in toolchain.use_header] + flags
        limits = self._config.compile_cpu_s, self._config.compile_output_mb
        build = partial(self._build, toolchain, flags, content, header, limits, "program")
        try:
            return self._read(await build())
        except SlotLost as error:
            _log.warning("compiler_lost", reason=str(error))
            RewardMetrics.retries.inc()
        try:
            return self._read(await build())
        except SlotLost as error:
            raise SandboxCrashed(str(error)) from error

    def _read(self, built: dict[str, Any]) -> Compiled:
        output, message = built["output"], built["errors"]
        ok = built["exit"] == 0 and output is not None
        if built["exit"] < 0 or built["late"]:
            message = "the compiler was stopped at a limit; " + message
        record = CompileRecord(
            ok=ok,
            cpu_ms=1000 * built["cpu_s"],
            wall_ms=1000 * built["wall_s"],
            cached=False,
            message="" if ok else message.strip()[:500],
        )
        return Compiled(binary=Binary(output) if ok else None, record=record)

    async def _header(self, toolchain: Toolchain, identity: str) -> Path | None:
        """The folder with the precompiled header, made by the first who needs it."""
        if not toolchain.header:
            return None
        folder = self._folder / identity
        made = folder / toolchain.header_output
        async with self._header_lock:
            if made.exists():
                return folder
            content = None if self._kept is None else self._kept.get(identity)
            if content is None:
                content = await self._build_header(toolchain)
                if self._kept is not None:
                    self._kept.put(identity, content)
            folder.mkdir(mode=0o755, exist_ok=True)
            folder.chmod(0o755)
            plain = toolchain.header_output.removesuffix(".gch")
            for name, text in ((plain, toolchain.header.encode()), (made.name, content)):
                part = folder / f".{name}.{os.getpid()}"
                part.write_bytes(text)
                part.chmod(0o644)
                part.rename(folder / name)
        return folder

    async def _build_header(self, toolchain: Toolchain) -> bytes:
        limits = _HEADER_CPU_S, _HEADER_MB
        try:
            built = await self._build(
                toolchain,
                list(toolchain.header_flags),
                toolchain.header.encode(),
                None,
                limits,
                toolchain.header_output,
            )
        except SlotLost as error:  # no answer had a part in it
            raise SlotFailed(f"the header could not be compiled: {error}") from error
        if built["exit"] != 0 or built["output"] is None:
            raise SlotFailed(f"the header could not be compiled: {built['errors'][:200]}")
        content: bytes = built["output"]
        return content

    async def _build(
        self,
        toolchain: Toolchain,
        flags: list[str],
        source: bytes,
        header: Path | None,
        limits: tuple[int, int],
        output: str,
    ) -> dict[str, Any]:
        """Run the compiler once; `output` is what it leaves, None if nothing.

        Raises:
            SlotFailed: it was never run.
            SlotLost: its jail ended while it ran.
        """
        work = Path(tempfile.mkdtemp(prefix="build-", dir=self._folder))
        if header is None and toolchain.header:
            (work / Path(output).stem).write_bytes(source)
        user_id = own_user_id() if os.geteuid() == 0 else None
        try:
            if user_id is not None:
                os.chown(work, user_id, user_id)
            order = self._order(toolchain, flags, work, header, limits, user_id)
            mounts = ["--bind", str(work), _INSIDE[0]]
            mounts += ["--ro-bind", str(header), _INSIDE[1]] if header is not None else []
            built = await self._run(order, source, mounts, _WALL_FACTOR * limits[0] + _WALL_S)
            built["output"] = _plain_file(work / output, limits[1] << 20)
            return built
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _order(
        self,
        toolchain: Toolchain,
        flags: list[str],
        work: Path,
        header: Path | None,
        limits: tuple[int, int],
        user_id: int | None,
    ) -> dict[str, Any]:
        path = shutil.which(toolchain.compiler)
        if path is None:
            raise SlotFailed(f"{toolchain.compiler} is not here")
        seccomp = build_filter(compiler=True)
        inside = self._jail.namespaces
        folder = _INSIDE[0] if inside else str(work)
        return {
            "command": [path, *flags],
            "environment": {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "LC_ALL": "C"},
            "folder": folder,
            "readable": [] if header is None else [_INSIDE[1] if inside else str(header)],
            "writable": ["/dev/null"],
            "executable": list(_SYSTEM),
            "user_id": user_id,
            "cpu_s": limits[0],
            "memory": self._config.compile_memory_mb << 20,
            "output": limits[1] << 20,
            "processes": self._jail.processes,
            "filter": (seccomp.program.hex(), seccomp.own_pid_at),
        }

    async def _run(
        self, order: dict[str, Any], source: bytes, mounts: list[str], wall_s: float
    ) -> dict[str, Any]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        given, errors = sealed_file(source), os.memfd_create("errors", os.MFD_CLOEXEC)
        started = time.monotonic()
        process: subprocess.Popen[bytes] | None = None
        try:
            with theirs:
                process = self._jail.start(theirs, "millrace-build", errors, mounts)
            ours.send(json.dumps(jailed_sources(BUILD)).encode())
            socket.send_fds(ours, [json.dumps(order).encode()], [given, errors])
            hello, _ = await _reply(ours, self._config.slot_start_s)
            reply, late = await _last_reply(ours, wall_s) if "confined" in hello else (hello, False)
            said = os.pread(errors, _ERROR_BYTES, 0).decode(errors="replace")
            if "confined" not in hello or "failed" in reply:
                raise SlotFailed(f"the compiler's jail: {reply.get('failed', said[-200:])}")
            facts = {"exit": reply.get("exit", -9), "cpu_s": reply.get("cpu_s", 0.0)}
            wall = time.monotonic() - started
            return {**facts, "wall_s": wall, "errors": said, "late": late}
        except OSError as error:
            raise SlotFailed(f"the compiler's jail: {error}") from error
        finally:
            ours.close()
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(_CLOSE_S)
            os.close(given)
            os.close(errors)


async def _reply(control: socket.socket, wall_s: float) -> tuple[dict[str, Any], bool]:
    """What the jail said, and whether it was too late."""
    try:
        async with asyncio.timeout(wall_s):
            message = await asyncio.get_running_loop().sock_recv(control, 1 << 16)
    except TimeoutError:
        return {}, True
    return (json.loads(message) if message else {}), False


async def _last_reply(control: socket.socket, wall_s: float) -> tuple[dict[str, Any], bool]:
    """The same of a jail in which a source was compiled.

    Raises:
        SlotLost: it ended without a word.
    """
    try:
        reply, late = await _reply(control, wall_s)
    except (OSError, ValueError) as error:
        raise SlotLost(f"the compiler's jail: {type(error).__name__}: {error}") from error
    if not (reply or late):
        raise SlotLost("the compiler's jail hung up")
    return reply, late


def _plain_file(path: Path, most: int) -> bytes | None:
    """The content of a file that the compiler left; a link or anything odd counts as none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or not 0 < facts.st_size <= most:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def _size(compiled: Compiled) -> int:
    return compiled.binary.size if compiled.binary else _ERROR_BYTES
