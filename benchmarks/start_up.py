"""Where the seconds and the CPU-seconds of `millrace demo` go, by phase and by process.

    python -m benchmarks.start_up --seeds 0 1 2 --json

Runs the demo as a user does and looks at its processes four times a second. On two cores the
CPU-seconds of all processes together are a limit of their own, besides the order of the phases.
Processes that live shorter than it takes to see them are summed up as "short-lived".
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.report import ROOT, machine, options_of, write
from millrace_tools.capacity.machine import free_port

_LOOK_S = 0.25
_PHASES = (
    ("starting Ray", "Ray and the model"),
    ("deploying", "services"),
    ("chat at", "run"),
    ("shutting everything down", "shutdown"),
)
"""Words that the demo prints when a phase begins, and the phase's name here."""
FIRST = "imports of the command"
NAMES = (FIRST, *(name for _, name in _PHASES))

Cpu = dict[str, Counter[str]]
"""CPU-seconds by phase and process."""


class Census:
    """Adds up the CPU time of a process and its descendants, by phase."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._seen: dict[tuple[int, float], float] = {}
        self.phase = FIRST
        self.cpu: Cpu = defaultdict(Counter)
        self.began_at = {FIRST: time.monotonic()}
        self._turn = threading.Lock()

    def enter(self, phase: str) -> None:
        """What is used from now on belongs to this phase."""
        self.look()
        self.phase = phase
        self.began_at[phase] = time.monotonic()

    def look(self) -> None:
        """Add what has been used since the last look."""
        with self._turn:
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for process in tree:
                try:
                    with process.oneshot():
                        times, title = process.cpu_times(), process.cmdline()
                        key = process.pid, process.create_time()
                except psutil.Error:
                    continue  # it has ended meanwhile
                used = times.user + times.system
                self.cpu[self.phase][label(title)] += used - self._seen.get(key, 0.0)
                self._seen[key] = used

    @property
    def seen_s(self) -> float:
        """CPU-seconds of all processes that were seen."""
        return sum(self._seen.values())


def label(command: list[str]) -> str:
    """What a process is, without what differs from run to run."""
    if not command:
        return "ended"
    title = command[0]
    if title.startswith("ray::"):
        return re.sub(r"(:.*?)[:#.].*", r"\1", title.removeprefix("ray::")) or "worker"
    if title.startswith("VLLM::"):
        return title.split()[0]
    for word in command[1:4]:
        if "." in word and not word.startswith("-"):
            return Path(word).name
    return Path(title).name


def measured(seed: int, steps: int | None) -> dict[str, Any]:
    """One demo: seconds and CPU-seconds by phase, and when each application was up."""
    command = [sys.executable, "-m", "millrace_tools.main", "demo", "--seed", str(seed)]
    command += ["--port", str(free_port()), *(["--steps", str(steps)] if steps else [])]
    began = time.monotonic()
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    census, up, said = Census(demo.pid), {}, []
    over = threading.Event()
    looking = threading.Thread(target=_look_until, args=(census, over))
    looking.start()
    assert demo.stdout is not None
    for line in demo.stdout:
        said.append(line)
        for words, phase in _PHASES:
            if words in line and phase not in census.began_at:
                census.enter(phase)
        if found := re.match(r" +(\w+) +\d+ up after ([\d.]+) s", line):
            up[found[1]] = float(found[2])
    _, status, usage = os.wait4(demo.pid, 0)
    over.set()
    looking.join()
    assert status == 0, "".join(said)[-4000:]
    ended = time.monotonic()
    begins = [*(census.began_at[name] for name in NAMES), ended]
    total = usage.ru_utime + usage.ru_stime
    census.cpu["all"]["short-lived"] = max(0.0, total - census.seen_s)
    return {
        "seed": seed,
        "seconds": round(ended - began, 1),
        "cpu_s": round(total, 1),
        "phases": {name: round(begins[at + 1] - begins[at], 1) for at, name in enumerate(NAMES)},
        "up_after": up,
        "cpu_by_phase": {
            phase: {name: round(used, 2) for name, used in of.most_common() if used >= 0.05}
            for phase, of in census.cpu.items()
        },
    }


def _look_until(census: Census, over: threading.Event) -> None:
    while not over.wait(_LOOK_S):
        census.look()


def print_demo(result: dict[str, Any]) -> None:
    """One demo as tables."""
    print(f"seed {result['seed']}: {result['seconds']} s, {result['cpu_s']} CPU-s")
    phases, cpu = result["phases"], result["cpu_by_phase"]
    for phase in (*NAMES, "all"):
        of = cpu.get(phase, {})
        print(f"  {phase:24} {phases.get(phase, 0):6.1f} s {sum(of.values()):6.1f} CPU-s")
        for name, used in of.items():
            print(f"    {name:40} {used:6.2f}")
    print(f"  up after: {result['up_after']}")


def main() -> None:
    """Run demos one after the other, print and keep their figures."""
    parser = options_of(__doc__, "start_up", seeds=[0])
    parser.add_argument("--steps", type=int, help="train steps; the run file's by default")
    options = parser.parse_args()
    results = []
    for seed in options.seeds:
        results.append(measured(seed, options.steps))
        print_demo(results[-1])
    print("median:", median(one["seconds"] for one in results), "s")
    write(options.json, machine() | {"load_after": round(os.getloadavg()[0], 1), "runs": results})


if __name__ == "__main__":
    main()
