"""Which processes workspaces have, and the killing of them."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable

import psutil

LEVELS = {"A": ("jail", "agent", "program"), "B": ("agent", "program")}
"""Of the processes below the service, by how far below: a jail is bubblewrap's own process, and
programs are interpreters as well."""


def victims(tier: str) -> dict[str, list[int]]:
    """Processes of workspaces below this process, by what they are."""
    found: dict[str, list[int]] = {}
    own = psutil.Process()
    level = [own]
    for name in LEVELS[tier]:
        below: list[psutil.Process] = []
        for process in level:
            with contextlib.suppress(psutil.Error):
                below += process.children()
        found[name] = [process.pid for process in below]
        level = below
    return found


async def kill(
    tier: str, chance: random.Random, every: float, done: Callable[[], int], kills: Counter[str]
) -> None:
    """Kill a process of some kind after so many sessions, about, for ever.

    Args:
        tier: of the workspaces.
        chance: decides what and when.
        every: sessions.
        done: how many sessions there have been.
        kills: counts them, by kind.
    """
    due = every
    while True:
        await asyncio.sleep(0.01)
        if done() < due:
            continue
        found = {kind: pids for kind, pids in victims(tier).items() if pids}
        if not found:
            continue
        due = done() + chance.uniform(0.5, 1.5) * every
        kind = chance.choice(sorted(found))
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(found[kind]), signal.SIGKILL)
            kills[kind] += 1
