"""What a service of workspaces holds, and whether it holds more than before.

Memory is counted in four ways. Objects, blocks and bytes in use are exact: what is not given back
stays in them. The resident set also has the pages that the allocators keep for what comes next; it
is read after they were told to give back what they can, and must level off.
"""

import asyncio
import ctypes
import gc
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import MIB
from services.reward_service.isolation.jail import own_user_ids

LEFT = ("processes", "mounts", "files", "shared_memory_files", "descriptors")
"""Nothing of a workspace may be left of these."""
SETTLES_S, LOOK_EVERY_S = 10.0, 0.05
"""For looks at processes that were under way, in threads, when their call ended."""


@dataclass(frozen=True)
class Allowed:
    """How much more of something is no leak: some, and some for each workspace that was opened.

    A replica remembers the ends of its last 10,000 workspaces: four blocks each, and 0.3 KiB. The
    soak itself remembers how long each took.
    """

    once: float
    each: float = 0.0


MEMORY: Mapping[str, Allowed] = {
    "objects": Allowed(1000),
    "blocks": Allowed(5000, each=12),
    "in_use_mib": Allowed(1.5, each=0.0003),
    "rss_mib": Allowed(4.0, each=0.002),
}


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def _bytes_in_use() -> int:
    """Of the C library's allocator, which has all that Python's own has no blocks for; 0 where
    another library is in use."""
    libc = ctypes.CDLL(None)
    try:
        about, trim = libc.mallinfo2, libc.malloc_trim
    except AttributeError:
        return 0
    trim(0)
    about.restype = _MallInfo2
    found = about()
    return int(found.uordblks + found.hblkhd)


def holdings(place: Path) -> dict[str, float]:
    """What is held now, here and in the folder of temporary files."""
    own = psutil.Process()
    gc.collect()
    in_use = _bytes_in_use()
    return {
        "processes": len(own.children(recursive=True)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "files": sum(len(names) + len(folders) for _, folders, names in os.walk(place)),
        "shared_memory_files": sum(_of_a_workspace(one) for one in os.scandir("/dev/shm")),
        "descriptors": own.num_fds(),
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "in_use_mib": round(in_use / MIB, 2),
        "rss_mib": round(own.memory_info().rss / MIB, 1),
    }


async def settled(place: Path, before: Mapping[str, float]) -> dict[str, float]:
    """What is held once all that ended workspaces had under way is done, or after seconds."""
    deadline = time.monotonic() + SETTLES_S
    while True:
        found = holdings(place)
        if not left(before, found) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(LOOK_EVERY_S)


def left(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """What of workspaces is still there, in words."""
    return [
        f"{what}: {before[what]:g} before, {after[what]:g} after"
        for what in LEFT
        if after[what] > before[what]
    ]


def grown(
    before: Mapping[str, float],
    after: Mapping[str, float],
    opened: int,
    *,
    warm: bool = True,
) -> list[str]:
    """Memory that so many workspaces have left behind, in words.

    Args:
        before: what was held.
        after: what is held now.
        opened: workspaces in between.
        warm: the service had as much at a time before; else the resident set is not judged.
    """
    return [
        f"{what}: {before[what]:g} before, {after[what]:g} after {opened} workspaces"
        for what, allowed in MEMORY.items()
        if (warm or what != "rss_mib")
        and after[what] > before[what] + allowed.once + allowed.each * opened
    ]


def _of_a_workspace(file: os.DirEntry[str]) -> bool:
    """Whether a user of a workspace has made it, and not one of the machine's other programs."""
    try:
        owner = file.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:
        return False
    return owner in own_user_ids() if os.geteuid() == 0 else owner == os.geteuid()
