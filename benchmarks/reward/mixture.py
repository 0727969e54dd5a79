"""Grades right, wrong and hostile answers together and measures how long the loop is held up.

    python -m benchmarks.reward.mixture [--answers 400] [--json]

In both tiers, in this process: the mixture of `tests/redteam/mixture.py`, half of it hostile, and
answers whose text or result takes long to look at. Each has to get its verdict, and the service's
event loop its turns. A turn's processor time is that of the loop's own thread, and does not depend
on the load of the machine; what a turn takes by the clock does, as the yardstick shows: how late a
plain thread of an idle process wakes meanwhile.
"""

import asyncio
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import uvloop

from benchmarks.report import Bar, machine, options_of, show, write
from services.observability.garbage import never_collect_what_stays
from services.reward_service.config import RewardServiceConfig, cores_here
from services.reward_service.scoring import Scoring
from tests.redteam.mixture import Answer, is_fair, long_answers, mixture

TIERS = ("A", "B")
TICK_S = 0.005
LONGEST_S = 0.1
_YARDSTICK = f"""
import sys, threading, time
late = []
threading.Thread(target=lambda: (sys.stdin.read(), late.append(None)), daemon=True).start()
most = 0.0
while not late:
    due = time.monotonic() + {TICK_S}
    time.sleep({TICK_S})
    most = max(most, time.monotonic() - due)
print(most)
"""


@dataclass
class Turns:
    """How long the loop took for what came between two of its ticks.

    Attributes:
        wall: seconds by the clock.
        cpu: processor seconds of its thread.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due, cpu = loop.time() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self.wall.append(max(0.0, loop.time() - due))
            self.cpu.append(time.thread_time() - cpu)


async def graded(tier: str, answers: list[Answer]) -> dict[str, Any]:
    """What came of them in a tier."""
    config = {
        "require_tier": tier,
        "use_bubblewrap": tier == "A",
        "slots": cores_here(),
        "graders": {"number": "tests.reward_service.own_graders:number"},
        "answer_deadline_s": 3600,  # the machine may be slow
        "queue_wait_s": 3600,
    }
    scoring, turns = Scoring(RewardServiceConfig.model_validate(config)), Turns()
    try:
        await scoring.start()
        never_collect_what_stays()  # as in a Serve replica
        began, watching = time.monotonic(), asyncio.create_task(turns.watch())
        scores = await scoring.score([answer.job for answer in answers])
        watching.cancel()
        healthy = scoring.healthy
    finally:
        await scoring.tools.aclose()
    unfair = [
        f"{answer.name}: {score.verdict} {score.reward}"
        for answer, score in zip(answers, scores, strict=True)
        if not is_fair(answer, score.verdict, score.reward)
    ]
    return {
        "answers": len(answers),
        "right": sum(answer.right for answer in answers),
        "unfair": unfair,
        "healthy": healthy,
        "seconds": round(time.monotonic() - began, 1),
        "longest_turn_cpu_s": round(max(turns.cpu), 4),
        "longest_turn_s": round(max(turns.wall), 4),
        "turns": len(turns.wall),
        "turns_beyond_the_bar": sum(one > LONGEST_S for one in turns.wall),
    }


def beside_a_yardstick(tier: str, answers: list[Answer]) -> dict[str, Any]:
    """The same, and how late an idle process woke at the most meanwhile."""
    command, pipe = [sys.executable, "-c", _YARDSTICK], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as yardstick:
        found = uvloop.run(graded(tier, answers))
        late, _ = yardstick.communicate()
    return {**found, "yardstick_s": round(float(late), 4)}


def main() -> int:
    """Grade them in both tiers; 1 if a verdict or a turn is wrong."""
    parser = options_of(__doc__, "reward_mixture", answers=(400, "half of them hostile"), seed=19)
    options = parser.parse_args()
    answers = mixture(options.answers, seed=options.seed, compiled=shutil.which("g++") is not None)
    answers += long_answers()
    found: dict[str, dict[str, Any]] = {}
    for tier in TIERS:
        found[tier] = beside_a_yardstick(tier, answers)
        write(options.json, {**machine(), **found})
    rows = [[name, *(str(found[tier][name]) for tier in TIERS)] for name in found["A"]]
    show(["figure", *(f"tier {tier}" for tier in TIERS)], rows)
    bars = [
        Bar(
            name=f"longest turn of the loop in tier {tier}, CPU-s",
            found=found[tier]["longest_turn_cpu_s"],
            limit=LONGEST_S,
            at_most=True,
        )
        for tier in TIERS
    ]
    print(*bars, sep="\n")
    right = all(one["healthy"] and not one["unfair"] for one in found.values())
    return 0 if right and all(one.met for one in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
