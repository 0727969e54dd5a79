"""Compiles the part of a slot that is in C."""

import asyncio
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path

from services.observability.log import Log
from services.reward_service.sandbox.build_cache import HEADERS_MB, BuildCache

_log = Log("reward_service")

_JAILED = Path(__file__).parents[1] / "jailed"
_PARTS = ("launcher.h", "files.c", "memory.c", "launcher.c")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-fPIC", "-shared")
_TIMEOUT_S = 60.0


@cache
def launcher_source() -> bytes:
    """All of it in one text, as the compiler may not be able to read the folder that it lies in."""
    parts = ((_JAILED / name).read_bytes() for name in _PARTS)
    return b"".join(parts).replace(b'#include "launcher.h"\n', b"")


async def built_launcher(cache_folder: str | None) -> bytes:
    """The library that slots load, from the cache if it is there.

    Empty where no compiler can make it: slots then do the same in Python, which takes longer.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        _log.warning("launcher_not_built", reason=f"none of {', '.join(_COMPILERS)} is here")
        return b""
    source = launcher_source()
    cache = None if cache_folder is None else BuildCache(cache_folder, max_mb=HEADERS_MB)
    name = hashlib.sha256("\0".join((compiler, *_FLAGS)).encode() + source).hexdigest()
    if cache is not None and (known := cache.get(name)) is not None:
        return known
    built = await _compiled(compiler, source)
    if cache is not None and built:
        cache.put(name, built)
    return built


async def _compiled(compiler: str, source: bytes) -> bytes:
    with tempfile.TemporaryDirectory(prefix="millrace-launcher-") as folder:
        library = Path(folder) / "launcher.so"
        process = await asyncio.create_subprocess_exec(
            *(compiler, *_FLAGS, "-x", "c", "-o", str(library), "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(source), _TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            said = b"the compiler hangs"
        if process.returncode == 0:
            return library.read_bytes()
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    _log.warning("launcher_not_built", compiler=compiler, reason="".join(last))
    return b""
