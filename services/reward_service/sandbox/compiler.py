"""Compiles answers: a jail for every compilation, headers compiled once, programs remembered."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import subprocess
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from cachetools import LRUCache

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.reward_service import CompileRecord
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import Jail
from services.reward_service.languages import Language
from services.reward_service.languages.language import Toolchain
from services.reward_service.sandbox.compiler_jail import Build, CompilerJail
from services.reward_service.sandbox.execution import (
    Binary,
    SandboxCrashed,
    SlotFailed,
    SlotLost,
)
from services.reward_service.sandbox.header_cache import HeaderCache
from services.reward_service.sandbox.scratch_folder import ScratchFolder

_log = Log("reward_service")

_ERROR_BYTES, _VERSION_S = 4096, 60.0
_HEADER_CPU_S, _HEADER_MB = 60, 1024


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled source: the program, None if it does not compile, and the record."""

    binary: Binary | None
    record: CompileRecord


class Compiler:
    """Turns sources into programs in a jail of the sandbox's tier.

    Args:
        config: limits of a compilation and of the memory for programs.
        jail: how jails are started here.
    """

    def __init__(self, config: RewardServiceConfig, jail: Jail) -> None:
        self._config = config
        self._programs: LRUCache[str, Compiled] = LRUCache(
            config.program_cache_mb << 20, getsizeof=_size
        )
        self._versions: dict[str, str] = {}
        self._header_lock = asyncio.Lock()
        cache = config.header_cache_dir
        self._header_cache = None if cache is None else HeaderCache(cache)
        if config.toolchain_dir is None:
            scratch = ScratchFolder("millrace-toolchain-")
            self._folder = scratch.path
            weakref.finalize(self, scratch.remove)
        else:
            self._folder = Path(config.toolchain_dir)
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._folder.chmod(0o755)  # the jails' users look into it
        self._jail = CompilerJail(config, jail, self._folder)

    def identity(self, language: Language) -> str:
        """A digest of what can change a verdict: the toolchain's version, flags and header.

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
            command = [path, "--version"]
            done = subprocess.run(command, capture_output=True, timeout=_VERSION_S, check=False)
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
            return _compiled(*await self._jail.run(build))
        except SlotLost as error:
            _log.warning("compiler_lost", reason=str(error))
            RewardMetrics.retries.inc()
        try:
            return _compiled(*await self._jail.run(build))
        except SlotLost as error:
            raise SandboxCrashed(str(error)) from error

    async def _header(self, toolchain: Toolchain, identity: str) -> Path | None:
        """The folder with the precompiled header; the first call makes it."""
        if not toolchain.header:
            return None
        folder = self._folder / identity
        made = folder / toolchain.header_output
        async with self._header_lock:
            if made.exists():
                return folder
            content = None if self._header_cache is None else self._header_cache.get(identity)
            if content is None:
                content = await self._build_header(toolchain)
                if self._header_cache is not None:
                    self._header_cache.put(identity, content)
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
            output, record = await self._jail.run(build)
        except SlotLost as error:  # no answer had a part in it
            raise SlotFailed(f"the header could not be compiled: {error}") from error
        if output is None:
            raise SlotFailed(f"the header could not be compiled: {record.message[:200]}")
        return output


def _compiled(output: bytes | None, record: CompileRecord) -> Compiled:
    return Compiled(binary=None if output is None else Binary(output), record=record)


def _size(compiled: Compiled) -> int:
    return compiled.binary.size if compiled.binary else _ERROR_BYTES
