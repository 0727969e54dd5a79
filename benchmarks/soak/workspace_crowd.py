"""Many workspaces that are open at once."""

import asyncio
import time
from typing import Any

import psutil

from benchmarks.report import MIB
from benchmarks.soak.engine import Findings
from services.protocol.reward.workspaces import OpenWorkspace, PythonCall
from services.reward_service.workspaces.workspaces import Workspaces

_CALLERS = 4


async def crowd(service: Workspaces, size: int, findings: Findings) -> dict[str, Any]:
    """Many workspaces open at once, each with an interpreter that holds a variable."""
    began = time.perf_counter()
    waiting = iter(range(size))
    opened = []

    async def open_some() -> None:
        for number in waiting:
            one = await service.open(OpenWorkspace(), owner="crowd")
            await one.python(PythonCall(code=f"kept = {number}"))
            opened.append((number, one))

    await asyncio.gather(*(open_some() for _ in range(_CALLERS)))
    all_open = time.perf_counter()
    own = psutil.Process()
    below = own.children(recursive=True)
    held = sum(process.memory_full_info().pss for process in below)
    calls = (one.python(PythonCall(code="kept")) for _, one in opened)
    answers = await asyncio.gather(*calls)
    answered = time.perf_counter()
    for (number, _), answer in zip(opened, answers, strict=True):
        if answer.result != str(number):
            findings.wrong("crowd", f"{number}: {answer}")
    await asyncio.gather(*(one.close("closed") for _, one in opened))
    return {
        "open": size,
        "processes": len(below),
        "mib_each": round(held / MIB / size, 2),
        "seconds_to_open": round(all_open - began, 1),
        "seconds_for_a_call_of_each": round(answered - all_open, 2),
        "seconds_to_close": round(time.perf_counter() - answered, 1),
    }
