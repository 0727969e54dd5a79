"""Opens, uses and closes thousands of workspaces while their processes are killed at random.

    python -m benchmarks.soak.workspaces [--workspaces 5000] [--hostile-minutes 60] [--json]

Every call must come back with what it asked for, or say that its workspace is lost or that its
interpreter is new. Nothing may be left: no process, mount, file, descriptor or memory. The last
tenth of the workspaces must be opened, used and closed as fast as the first. Then many are open
at once, and one is left open with a hostile program for as long as you like, in rounds: what is
held after the last round must be what was held after the first.
"""

import argparse
import asyncio
import os
import random
import resource
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks.report import options_of
from benchmarks.soak.census import Census, Rules
from benchmarks.soak.engine import Findings, conclude
from benchmarks.soak.workspace_holdings import grown, holdings, left, settled
from benchmarks.soak.workspace_kills import kill
from benchmarks.soak.workspace_rounds import one_round, opened, together
from benchmarks.soak.workspace_uses import NUMBER_FILE, USES
from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import WorkspaceFault, WorkspaceGone
from services.reward_service.workspaces.workspaces import Workspaces

CALLERS, USES_EACH = 4, 3
COUNT_EVERY = 50
STEPS = ("open", "use", "close")
MOST_SLOWER = 1.3
"""Times the median of the first tenth that the last tenth's may be, beside a yardstick: the start
of a shell without a jail, which takes longer when the machine has other work."""
YARDSTICK_EVERY = 5
RULES = Rules(more={"fds": 8.0}, settled=0.2)
"""Memory is judged by what is held between the parts of the soak."""


@dataclass
class Soak:
    """Sessions and what became of them."""

    done: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    uses: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    census: Census = field(default_factory=lambda: Census(lambda: {os.getpid(): "service"}, RULES))

    def end(self, how: str) -> None:
        """Count a session, and this process now and then."""
        self.done += 1
        self.ends[how] += 1
        if self.done % COUNT_EVERY == 0:
            self.census.take()

    def tenths(self) -> dict[str, list[float]]:
        """Median milliseconds of the first and the last tenth, by step."""
        found = {}
        for step in ("yardstick", *STEPS):
            seconds = self.seconds[step]
            part = max(1, len(seconds) // 10)
            found[step] = [
                round(1e3 * median(some), 1) for some in (seconds[:part], seconds[-part:])
            ]
        return found

    def judge(
        self,
        before: Mapping[str, float],
        after: Mapping[str, float],
        opened: int,
        *,
        warm: bool = True,
    ) -> None:
        """Look whether workspaces have left anything, and the memory that so many have left."""
        for what in left(before, after):
            self.findings.wrong("left", what)
        for what in grown(before, after, opened, warm=warm):
            self.findings.wrong("memory", what)

    def judge_tenths(self) -> None:
        """Look whether opening, using and closing have become slower."""
        found = self.tenths()
        machine = max(1.0, found["yardstick"][1] / found["yardstick"][0])
        for step in STEPS:
            first, last = found[step]
            if last > MOST_SLOWER * machine * first + 1.0:
                said = f"{step} took {first} ms, and {last} at the end"
                self.findings.wrong("slower", f"{said}; the machine {machine:.2f} times as long")


async def sessions(
    service: Workspaces, numbers: Iterator[int], chance: random.Random, seen: Soak
) -> None:
    """One session after the other until there are no more numbers."""
    for number in numbers:
        if number % YARDSTICK_EVERY == 0:
            seen.seconds["yardstick"].append(await _yardstick())
        try:
            seconds = await _session(service, number, chance, seen)
        except WorkspaceGone as gone:
            if gone.reason != "lost":
                seen.findings.wrong("gone", f"{gone.reason}, which nobody asked for")
            seen.end(gone.reason)
        except (WorkspaceFault, InvalidInput) as failed:
            # A jail that was killed while it began, or a file call whose process was.
            if not seen.kills:
                seen.findings.wrong("failed", str(failed))
            seen.end(type(failed).__name__)
        except Exception as error:  # noqa: BLE001 - counted, and the soak goes on
            seen.findings.wrong("raised", repr(error))
            seen.end("raised")
        else:
            for step, taken in zip(STEPS, seconds, strict=True):
                seen.seconds[step].append(taken)
            seen.end("closed")


async def _yardstick() -> float:
    """Seconds that a plain process takes from its start to its end."""
    began = time.perf_counter()
    shell = await asyncio.create_subprocess_exec("/bin/sh", "-c", ":")
    await shell.wait()
    return time.perf_counter() - began


async def _session(
    service: Workspaces, number: int, chance: random.Random, seen: Soak
) -> tuple[float, float, float]:
    """Open a workspace, use it and close it; the seconds that each took."""
    clock = time.perf_counter
    began = clock()
    spec = OpenWorkspace(files={NUMBER_FILE: f"{number}\n"})
    workspace = await service.open(spec, owner=f"key-{number % 4}")
    opened = clock()
    try:
        for name in chance.choices(list(USES), [often for _, often in USES.values()], k=USES_EACH):
            seen.uses[name] += 1
            if wrong := await USES[name][0](service, workspace, number):
                seen.findings.wrong(name, wrong)
        used = clock()
    finally:
        await workspace.close("closed")
    return opened - began, used - opened, clock() - used


async def soak(options: argparse.Namespace, place: Path, seen: Soak) -> dict[str, Any]:
    """All of it, on one service."""
    config = {
        "require_tier": options.tier,
        "use_bubblewrap": options.tier == "A",
        "shared_user": True,
        "max_open": options.at_once + 16,
        "per_key": options.at_once + 16,
        "starts_per_s": 1000.0,
        "starts_at_once": 1000,
    }
    service = Workspaces(WorkspacesConfig.model_validate(config))
    await service.start()
    try:
        await sessions(service, iter(range(20)), random.Random(options.seed), Soak())
        before = holdings(place)
        numbers, chance = iter(range(options.workspaces)), random.Random(options.seed)
        killing = kill(options.tier, chance, options.kill_every, lambda: seen.done, seen.kills)
        killer = asyncio.create_task(killing, name="killer")
        await asyncio.gather(*(sessions(service, numbers, chance, seen) for _ in range(CALLERS)))
        killer.cancel()
        (ended,) = await asyncio.gather(killer, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            seen.findings.wrong("killer", f"nothing was killed any more: {ended!r}")
        after = await settled(place, before)
        seen.judge(before, after, options.workspaces)
        return {"before": before, **await rounds(service, options, place, after, seen)}
    finally:
        await service.aclose()


async def rounds(
    service: Workspaces,
    options: argparse.Namespace,
    place: Path,
    after: Mapping[str, float],
    seen: Soak,
) -> dict[str, Any]:
    """Many at once and a hostile program, in rounds.

    Args:
        service: used before.
        options: of the soak.
        place: the folder of temporary files.
        after: what is held now.
        seen: gets what is wrong.
    """
    wanted = options.rounds if options.at_once or options.hostile_minutes else 0
    found: list[dict[str, Any]] = []
    held: list[Mapping[str, float]] = []
    for number in range(wanted):
        found.append(await one_round(service, options, number, seen.findings))
        held.append(await settled(place, after))
        if number == 0:
            seen.judge(after, held[0], opened(found[0]), warm=False)
        else:
            seen.judge(held[0], held[-1], sum(map(opened, found[1:])))
    at_the_end = held[-1] if held else after
    return {"after": after, **together(found), "after_each_round": held, "at_the_end": at_the_end}


def main() -> None:
    """Run it and say what was seen."""
    parser = options_of(
        __doc__,
        "soak_workspaces",
        workspaces=(5000, "one after the other"),
        kill_every=(20.0, "sessions, about"),
        at_once=(200, "open at the same time, afterwards"),
        hostile_minutes=(0.0, "with a hostile program in an open workspace, afterwards"),
        rounds=(3, "that the last two are divided into: after the first none may grow"),
        tier=("A", "A with namespaces, B without"),
        seed=(0, "of uses and kills"),
    )
    options = parser.parse_args()
    started, seen = time.monotonic(), Soak()
    with tempfile.TemporaryDirectory(prefix="soak-workspaces-") as folder:
        os.chmod(folder, 0o711)  # tier B has the workspaces' folders below it
        tempfile.tempdir = folder
        found = uvloop.run(soak(options, Path(folder), seen))
        if files := os.listdir(folder):
            seen.findings.wrong("left", f"files when the service had ended: {files}")
    seen.judge_tenths()
    spent = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures = {
        "workspaces": seen.done,
        "cpu_seconds": round(sum(one.ru_utime + one.ru_stime for one in spent), 1),
        "ends": dict(seen.ends),
        "uses": dict(seen.uses),
        "kills": dict(seen.kills),
        "milliseconds_first_and_last_tenth": seen.tenths(),
        **found,
    }
    rows = [(name, str(one)) for name, one in figures.items()]
    problems = seen.findings.problems
    conclude(options, time.monotonic() - started, seen.census, problems, figures, rows)


if __name__ == "__main__":
    main()
