"""Stand in for libnuma where a machine has none: vLLM's CPU build does not load without it.

A bare Debian has no libnuma, and no Python package brings it. The stand-in says that there is no
NUMA, on which vLLM leaves memory where the kernel puts it. `provide` is a platform plugin of
vLLM's (entry point `vllm.platform_plugins`), which it calls in each process before it loads its
kernels; `tests/rollout_server/test_numa_library.py` fails when they need more of libnuma.
"""

import ctypes
import os
import platform
import struct

PLUGIN = "libnuma"
"""The entry point's name."""

SONAME = "libnuma.so.1"
_FUNCTIONS = (
    ("numa_available", "libnuma_1.1"),
    ("numa_migrate_pages", "libnuma_1.1"),
    ("numa_set_strict", "libnuma_1.1"),
    ("numa_bitmask_free", "libnuma_1.2"),
    ("numa_get_mems_allowed", "libnuma_1.2"),
    ("numa_parse_nodestring", "libnuma_1.2"),
    ("numa_set_interleave_mask", "libnuma_1.2"),
    ("numa_set_membind", "libnuma_1.2"),
)
_VERSIONS = (SONAME, "libnuma_1.1", "libnuma_1.2")
_MACHINES = {
    # ELF's number of the machine, and `return -1`, which is numa_available's "no".
    "x86_64": (62, bytes.fromhex("b8ffffffffc3")),
    "aarch64": (183, bytes.fromhex("00008012c0035fd6")),
}
_PAGE = 0x10000  # the largest that Linux has on these machines
_READ_EXECUTE, _READ_WRITE = 5, 6

_kept: list[ctypes.CDLL] = []


def provide() -> None:
    """Load the machine's libnuma, or else the stand-in; not a platform, so it returns None.

    Raises:
        OSError: the machine has no libnuma, and is none for which there is a stand-in.
    """
    if _kept:
        return
    try:
        _kept.append(ctypes.CDLL(SONAME))
        return
    except OSError:
        if platform.machine() not in _MACHINES:
            raise
    descriptor = os.memfd_create(SONAME)
    try:
        os.write(descriptor, stand_in(platform.machine()))
        _kept.append(ctypes.CDLL(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def stand_in(machine: str) -> bytes:
    """A shared library whose functions all return -1 (System V ABI, gABI 4.1; LSB 5, 10.7)."""
    number, code = _MACHINES[machine]
    names = b"\0"
    places = {}
    for name in (*(name for name, _ in _FUNCTIONS), *_VERSIONS):
        places[name] = len(names)
        names += name.encode() + b"\0"
    tables: dict[str, bytes] = {
        "hash": _hash_table(len(_FUNCTIONS) + 1),
        "symbols": bytes(24 * (len(_FUNCTIONS) + 1)),
        "names": names,
        "versions": _symbol_versions(),
        "definitions": _version_definitions(places),
        "code": code,
    }
    at, offset = {}, 64 + 4 * 56
    for name, table in tables.items():
        at[name] = offset
        offset += -(-len(table) // 8) * 8
    # A function is global (1 << 4), a function (2), and in some section: which is never asked.
    tables["symbols"] = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", places[name], 0x12, 0, 1, at["code"], len(code))
        for name, _ in _FUNCTIONS
    )
    dynamic = _dynamic(at, places, len(names))
    image = _headers(number, offset, len(dynamic))
    for name, table in tables.items():
        image = image.ljust(at[name], b"\0") + table
    return image.ljust(_PAGE, b"\0") + dynamic


def _headers(machine: int, text: int, dynamic: int) -> bytes:
    """The file's header and its segments: tables and code, what the loader writes to, no stack."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    file = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    segments = (
        (1, _READ_EXECUTE, 0, text, _PAGE),
        (1, _READ_WRITE, _PAGE, dynamic, _PAGE),
        (2, _READ_WRITE, _PAGE, dynamic, 8),
        (0x6474E551, _READ_WRITE, 0, 0, 16),
    )
    return file + b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, place, place, place, size, size, align)
        for kind, flags, place, size, align in segments
    )


def _dynamic(at: dict[str, int], places: dict[str, int], names: int) -> bytes:
    entries = (
        (14, places[SONAME]),
        (4, at["hash"]),
        (5, at["names"]),
        (6, at["symbols"]),
        (10, names),
        (11, 24),
        (0x6FFFFFF0, at["versions"]),
        (0x6FFFFFFC, at["definitions"]),
        (0x6FFFFFFD, len(_VERSIONS)),
        (0, 0),
    )
    return b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)


def _hash_table(symbols: int) -> bytes:
    """One bucket, so that all are in one chain and no name needs to be hashed."""
    chain = [0, *range(2, symbols), 0]
    return struct.pack(f"<{3 + symbols}I", 1, symbols, 1, *chain)


def _symbol_versions() -> bytes:
    numbers = [_VERSIONS.index(version) + 1 for _, version in _FUNCTIONS]
    return struct.pack(f"<{len(numbers) + 1}H", 0, *numbers)


def _version_definitions(places: dict[str, int]) -> bytes:
    """The first is the library's own name."""
    made = b""
    for number, name in enumerate(_VERSIONS, 1):
        follows = 28 if number < len(_VERSIONS) else 0
        made += struct.pack("<HHHHIII", 1, number == 1, number, 1, _elf_hash(name), 20, follows)
        made += struct.pack("<II", places[name], 0)
    return made


def _elf_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ ((value & 0xF0000000) >> 24)) & 0x0FFFFFFF
    return value
