"""A workspace that is left open with a hostile program, and what its neighbour sees of it."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from services.protocol.reward.workspaces import CallResult, ExecCall, OpenWorkspace, PythonCall
from services.reward_service.workspaces.errors import WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.workspaces.attacks import GOT_THROUGH, ON_THE_MACHINE
from tests.redteam.workspaces.on_space import FLOODS, SPEC
from tests.redteam.workspaces.on_the_agent import FORGERIES, REACHES, SIGNALS

LIMITS: dict[str, Any] = {"wall_s": 2.0, "cpu_s": 1.0, "output_kb": 64}
_FLOODS = {name: flood.python for name, flood in FLOODS.items() if flood.python is not None}
PROGRAMS = {**ON_THE_MACHINE, **REACHES, **SIGNALS, **FORGERIES, **_FLOODS}
LINES = {name: flood.shell for name, flood in FLOODS.items() if flood.shell is not None}
LOOK = ExecCall(shell="rm -rf ./* 2> /dev/null; echo here")
IDLE_S, TOTAL_S = 3600.0, 86_400.0
"""Of both workspaces: nothing but an attack ends them."""
SIEGE_EVERY = 25

_SIEGE = """
import json, os, random, sys, time
attacks = json.load(sys.stdin)
while True:
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.01)
        continue
    if child == 0:
        try:
            exec(random.choice(attacks), {"__name__": "__main__"})
        finally:
            os._exit(0)
    deadline = time.monotonic() + 0.5
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.002)
"""
"""Attacks that do not end the program itself, one after the other, for as long as it runs."""


def siege(wall_s: float) -> ExecCall:
    """A call that attacks until something ends it."""
    floods = [code for name, code in _FLOODS.items() if name.startswith("descriptors")]
    attacks = json.dumps([*ON_THE_MACHINE.values(), *floods])
    argv = ["python3", "-c", _SIEGE]
    return ExecCall(
        argv=argv, stdin=attacks, wall_s=wall_s, cpu_s=min(wall_s, 600.0), output_kb=1024
    )


@dataclass
class Neighbour:
    """A quiet workspace that is called again and again while the other one attacks.

    Attributes:
        seconds: that each of its calls took.
        surprises: in words.
    """

    workspace: Workspace
    seconds: list[float] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)

    async def work(self) -> None:
        """Until it is cancelled."""
        await self.workspace.python(PythonCall(code="kept = 6"))
        while True:
            began = time.perf_counter()
            cell = await self.workspace.python(PythonCall(code="kept * 7"))
            self.seconds.append(time.perf_counter() - began)
            if cell.result != "42":
                self.surprises.append(f"the neighbour's call {len(self.seconds)}: {cell}")
                await self.workspace.python(PythonCall(code="kept = 6"))
            await asyncio.sleep(0.05)

    def figures(self) -> dict[str, Any]:
        """How many calls, and their milliseconds."""
        part = max(1, len(self.seconds) // 10)
        tenths = (self.seconds[:part], self.seconds[-part:])
        return {
            "calls": len(self.seconds),
            "milliseconds_first_and_last_tenth": [round(1e3 * median(one), 1) for one in tenths],
            "slowest_milliseconds": round(1e3 * max(self.seconds), 1),
        }


async def hostile(
    workspaces: Workspaces, seconds: float, seed: int, *, least: int = 1, siege_s: float = 2.0
) -> dict[str, Any]:
    """Attack from one workspace, which stays open as long as it can, beside a quiet neighbour.

    Args:
        workspaces: with a place for two.
        seconds: until the last attack, but
        seed: of their order.
        least: attacks are tried in any case.
        siege_s: length of a call that attacks all the time, which every 25th attack is.

    Returns:
        Numbers of attacks, by how they ended, and `surprises` in words.
    """
    chance, statuses, surprises = random.Random(seed), Counter[str](), list[str]()
    spec = SPEC.model_copy(update={"idle_s": IDLE_S, "total_s": TOTAL_S})
    attacked = await workspaces.open(spec, owner="hostile")
    quiet = await workspaces.open(OpenWorkspace(total_s=TOTAL_S, idle_s=IDLE_S), owner="quiet")
    neighbour = Neighbour(quiet)
    working = asyncio.create_task(neighbour.work())
    deadline, tried = time.monotonic() + seconds, 0
    while not working.done() and (tried < least or time.monotonic() < deadline):
        tried += 1
        try:
            name, done = await _attack(attacked, chance, tried, siege_s)
            statuses[done.status] += 1
            if GOT_THROUGH in f"{done.stdout}{done.stderr}{done.result}":
                surprises.append(f"{name} got through: {done}")
            again = await attacked.exec(LOOK)
            if again.stdout != "here\n":  # a cell's own children may be as many as there may be
                await attacked.python(PythonCall(code="", restart=True))
                again = await attacked.exec(LOOK)
            if again.stdout != "here\n":
                surprises.append(f"after {name}: {again}")
        except WorkspaceGone as gone:
            statuses[f"gone: {gone.reason}"] += 1
            await attacked.close("closed")
            attacked = await workspaces.open(spec, owner="hostile")
    working.cancel()
    (ended,) = await asyncio.gather(working, return_exceptions=True)
    if not isinstance(ended, asyncio.CancelledError):
        surprises.append(f"the neighbour: {ended!r}")
    for one in (attacked, quiet):
        await one.close("closed")
    return {
        "attacks": tried,
        "ends": dict(statuses),
        "neighbour": neighbour.figures(),
        "surprises": surprises + neighbour.surprises,
    }


async def _attack(
    workspace: Workspace, chance: random.Random, number: int, siege_s: float
) -> tuple[str, CallResult]:
    """One of them, as a cell or as a program."""
    if number % SIEGE_EVERY == 0:
        return "a siege", await workspace.exec(siege(siege_s))
    name = chance.choice(sorted(PROGRAMS.keys() | LINES.keys()))
    if name in LINES:
        return name, await workspace.exec(ExecCall(shell=LINES[name], **LIMITS))
    code = PROGRAMS[name]
    if chance.random() < 0.5 and "\0" not in code:
        return name, await workspace.exec(ExecCall(argv=["python3", "-c", code], **LIMITS))
    return name, await workspace.python(PythonCall(code=code, **LIMITS))
