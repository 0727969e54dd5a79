"""Compiles answers: a jail for every compilation, headers compiled once, programs remembered."""

import asyncio
import contextlib
import hashlib
import io
import os
import subprocess
import weakref
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from cachetools import LRUCache

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.reward_service import CompileRecord
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.runtimes import interpreter
from services.reward_service.languages import Language
from services.reward_service.languages.language import Toolchain
from services.reward_service.languages.tool import Tool
from services.reward_service.sandbox.build_cache import HEADERS_MB, BuildCache
from services.reward_service.sandbox.compiler_jail import Build, CompilerJail
from services.reward_service.sandbox.execution import (
    Binary,
    SandboxCrashed,
    SlotFailed,
    SlotLost,
    ToolMissing,
)
from services.reward_service.sandbox.launch import Launch
from services.reward_service.sandbox.scratch_folder import ScratchFolder

_log = Log("reward_service")

_ERROR_BYTES, _VERSION_S = 4096, 60.0
_HEADER_CPU_S, _HEADER_MB = 60, 1024
_KNOWN = CompileRecord(ok=True, cpu_ms=0.0, wall_ms=0.0, cached=True, message="")
"""Of a program that another service, or an earlier one, has compiled."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A source that is ready to run, or does not compile.

    Attributes:
        binary: the program; None if it does not compile.
        record: of the compilation; None for a source that an interpreter reads.
        launch: how the program is started; None: it is an executable that needs nothing.
    """

    binary: Binary | None
    record: CompileRecord | None
    launch: Launch | None = None


class Compiler:
    """Turns sources into programs in a jail of the sandbox's tier.

    Args:
        config: limits of a compilation and of the memory for programs.
        jail: how jails are started here.

    Attributes:
        shared: folder of the compiled headers, some of which programs need when they run.
    """

    def __init__(self, config: RewardServiceConfig, jail: Jail) -> None:
        self._config = config
        self._programs: LRUCache[str, Compiled] = LRUCache(
            config.program_cache_mb << 20, getsizeof=_size
        )
        self._versions: dict[str, str] = {}
        self._header_lock, self._version_lock = asyncio.Lock(), asyncio.Lock()
        self._kept_headers = self._kept_programs = None
        if config.header_cache_dir is not None:
            folder = Path(config.header_cache_dir)
            self._kept_headers = BuildCache(folder, max_mb=HEADERS_MB)
            self._kept_programs = BuildCache(folder / "programs", max_mb=config.kept_programs_mb)
        if config.toolchain_dir is None:
            scratch = ScratchFolder("millrace-toolchain-")
            self._folder = scratch.path
            weakref.finalize(self, scratch.remove)
        else:
            self._folder = Path(config.toolchain_dir)
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.shared = self._folder / "headers"
        self.shared.mkdir(mode=0o755, exist_ok=True)
        for folder in (self._folder, self.shared):
            folder.chmod(0o755)  # the jails' users look into it
        self._jail = jail
        self._compiler_jail = CompilerJail(config, jail, self._folder)

    async def identity(self, language: Language) -> str:
        """A digest of what can change a verdict: the toolchain's version, flags and header.

        Raises:
            ToolMissing: it is not installed, or jails cannot reach it.
        """
        toolchain = language.toolchain
        assert toolchain is not None, "only for languages that are compiled"
        async with self._version_lock:
            if language.name not in self._versions:
                # Starting it takes half a second for some, and finding it may start another.
                said = await asyncio.to_thread(self._version, language, toolchain)
                given = (*toolchain.flags, *toolchain.use_header, *toolchain.header_flags)
                variables = (f"{name}={value}" for name, value in toolchain.environment)
                parts = (said, *given, *variables, toolchain.header)
                digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
                self._versions[language.name] = digest
        return self._versions[language.name]

    def _version(self, language: Language, toolchain: Toolchain) -> str:
        tool = self._reached(language, toolchain.find(toolchain.compiler))
        command = [tool.path, *toolchain.version]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_VERSION_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolMissing(f"{language.name} does not work here: {error}") from error
        return done.stdout.decode(errors="replace")

    def lacks(self, language: Language) -> str:
        """What keeps answers in a language from being graded here; empty: nothing."""
        runtime = language.runtime
        try:
            if language.toolchain is not None:
                self._reached(language, language.toolchain.find(language.toolchain.compiler))
            if runtime is not None and runtime.interpreter:
                self._reached(language, interpreter(runtime))
        except ToolMissing as missing:
            return str(missing)
        return ""

    def _reached(self, language: Language, tool: Tool | None) -> Tool:
        if tool is None:
            raise ToolMissing(language.missing())
        for folder in tool.folders:
            if not self._jail.reaches(folder):
                raise ToolMissing(
                    f"{language.name} needs {tool.path}, and only root may enter the folders above "
                    "it: install it elsewhere, or give the service namespaces (tier A)."
                )
        return tool

    async def compile(self, source: str, language: Language) -> Compiled:
        """A program for a source; identical sources are compiled once.

        A jail that is lost is replaced once, as the slots of answers are.

        Raises:
            SandboxCrashed: the source lost its jail twice.
            ToolMissing: its compiler or interpreter is not to be had here.
            SlotFailed: no compiler could be run, which is nothing the source did.
        """
        content = source.encode("utf-8", "backslashreplace")
        if language.toolchain is None:
            launch = self._launch(language, None)
            return Compiled(binary=Binary(content), record=None, launch=launch)
        identity = await self.identity(language)
        key = hashlib.sha256(identity.encode() + content).hexdigest()
        known = self._programs.get(key)
        if known is not None and known.record is not None:
            return replace(known, record=replace(known.record, cached=True))
        compiled = await self._kept(key, language)
        if compiled is None:
            compiled = await self._compile(content, language)
            await self._keep(key, compiled)
            result = "failed" if compiled.binary is None else "ok"
            RewardMetrics.compiles.inc(1, {"language": language.name, "result": result})
        with contextlib.suppress(ValueError):  # it is larger than the whole cache
            self._programs[key] = compiled
        return compiled

    async def _kept(self, key: str, language: Language) -> Compiled | None:
        """A program that this user's services keep, with the header that it needs to run."""
        if self._kept_programs is None or language.toolchain is None:
            return None
        binary = await asyncio.to_thread(_program, self._kept_programs, key)
        if binary is None:
            return None
        header = None
        if language.runtime is not None:
            header = await self._header(language.toolchain, await self.identity(language))
        launch = self._launch(language, header)
        return Compiled(binary=binary, record=_KNOWN, launch=launch)

    async def _keep(self, key: str, compiled: Compiled) -> None:
        """A source that failed is compiled again: it may have met a limit."""
        if self._kept_programs is not None and compiled.binary is not None:
            content = os.pread(compiled.binary.descriptor, compiled.binary.size, 0)
            await asyncio.to_thread(self._kept_programs.put, key, content)

    async def _compile(self, content: bytes, language: Language) -> Compiled:
        toolchain = language.toolchain
        assert toolchain is not None
        header = await self._header(toolchain, await self.identity(language))
        build = Build(
            toolchain=toolchain,
            flags=(*(toolchain.use_header if header is not None else ()), *toolchain.flags),
            source=content,
            output="program",
            header=header,
            cpu_s=self._config.compile_cpu_s,
            output_mb=self._config.compile_output_mb,
        )
        try:
            output, record = await self._compiler_jail.run(build)
        except SlotLost as error:
            _log.warning("compiler_lost", reason=str(error))
            RewardMetrics.retries.inc()
            try:
                output, record = await self._compiler_jail.run(build)
            except SlotLost as lost:
                raise SandboxCrashed(str(lost)) from lost
        binary = None if output is None else Binary(output)
        return Compiled(binary=binary, record=record, launch=self._launch(language, header))

    def _launch(self, language: Language, header: Path | None) -> Launch | None:
        """How programs of a language are started here.

        Raises:
            ToolMissing: its interpreter is not installed, or jails cannot reach it.
        """
        runtime = language.runtime
        if runtime is None:
            return None
        tool = None
        if runtime.interpreter:
            found = self._reached(language, interpreter(runtime))
            tool = found.inside(namespaces=self._jail.namespaces)
        folder = "" if header is None else self._jail.shared_place(header)
        return Launch(language=language.name, runtime=runtime, tool=tool, folder=folder)

    async def _header(self, toolchain: Toolchain, identity: str) -> Path | None:
        """The folder with the compiled header; the first call makes it."""
        if not toolchain.header:
            return None
        folder = self.shared / identity
        made = folder / toolchain.header_output
        async with self._header_lock:
            if made.exists():
                return folder
            content = None
            if self._kept_headers is not None:
                content = await asyncio.to_thread(self._kept_headers.get, identity)
            if content is None:
                content = await self._build_header(toolchain)
                if self._kept_headers is not None:
                    await asyncio.to_thread(self._kept_headers.put, identity, content)
            await asyncio.to_thread(lay_out, toolchain, content, folder)
        return folder

    async def _build_header(self, toolchain: Toolchain) -> bytes:
        build = Build(
            toolchain=toolchain,
            flags=toolchain.header_flags,
            source=toolchain.header.encode(),
            output=toolchain.header_output,
            header=None,
            cpu_s=_HEADER_CPU_S,
            output_mb=_HEADER_MB,
        )
        try:
            output, record = await self._compiler_jail.run(build)
        except SlotLost as error:  # no answer had a part in it
            raise SlotFailed(f"the header could not be compiled: {error}") from error
        if output is None:
            raise SlotFailed(f"the header could not be compiled: {record.message[:200]}")
        return output


def lay_out(toolchain: Toolchain, content: bytes, folder: Path) -> None:
    """Fill the folder of a header; the compiled one comes last, as it says that all is there."""
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    if toolchain.packed:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(folder)
        for path in (folder / toolchain.packed).rglob("*"):
            path.chmod(0o755)  # whatever this user's files are to others by themselves
    source = toolchain.header.encode()
    for name, text in ((toolchain.header_file, source), (toolchain.header_output, content)):
        part = folder / f".{name}.{os.getpid()}"
        part.write_bytes(text)
        part.chmod(0o644)
        part.rename(folder / name)


def _program(kept: BuildCache, name: str) -> Binary | None:
    content = kept.get(name)
    return None if content is None else Binary(content)


def _size(compiled: Compiled) -> int:
    return compiled.binary.size if compiled.binary else _ERROR_BYTES
