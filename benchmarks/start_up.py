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
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.processes import CpuMeter, Usage, since
from benchmarks.report import ROOT, machine, options_of, write
from millrace_tools.capacity.machine import free_port

_LOOK_S = 0.25
_PHASES = {
    "starting Ray": "Ray and the model",
    "deploying": "services",
    "chat at": "run",
    "shutting everything down": "shutdown",
}
"""Words that the demo prints when a phase begins, and the phase's name here."""
FIRST = "imports of the command"


def label(process: psutil.Process) -> str:
    """Name of a process, the same in every run."""
    command = process.cmdline()
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
    marks: list[tuple[str, float, Usage]] = [(FIRST, time.monotonic(), {})]  # phases begin
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    meter, up, said = CpuMeter(demo.pid, label), {}, []
    over = threading.Event()
    looking = threading.Thread(target=_look_until, args=(meter, over))
    looking.start()
    assert demo.stdout is not None
    for line in demo.stdout:
        said.append(line)
        for words, phase in _PHASES.items():
            if words in line and all(phase != begun for begun, _, _ in marks):
                marks.append((phase, time.monotonic(), meter.read()))
        if found := re.match(r" +(\w+) +\d+ up after ([\d.]+) s", line):
            up[found[1]] = float(found[2])
    _, status, usage = os.wait4(demo.pid, 0)
    over.set()
    looking.join()
    assert status == 0, "".join(said)[-4000:]
    marks.append(("", time.monotonic(), meter.read()))
    total, seen = usage.ru_utime + usage.ru_stime, marks[-1][2]
    cpu = {phase: since(before, after) for (phase, _, before), (_, _, after) in pairwise(marks)}
    cpu["all"] = {"short-lived": max(0.0, total - sum(seen.values()))}
    return {
        "seed": seed,
        "seconds": round(marks[-1][1] - marks[0][1], 1),
        "cpu_s": round(total, 1),
        "phases": {
            phase: round(ended - began, 1) for (phase, began, _), (_, ended, _) in pairwise(marks)
        },
        "up_after": up,
        "cpu_by_phase": {phase: _largest_first(used) for phase, used in cpu.items()},
    }


def _look_until(meter: CpuMeter, over: threading.Event) -> None:
    while not over.wait(_LOOK_S):
        meter.read()


def _largest_first(usage: Usage) -> Usage:
    largest = sorted(usage.items(), key=lambda one: -one[1])
    return {name: round(used, 2) for name, used in largest if used >= 0.05}


def print_demo(result: dict[str, Any]) -> None:
    """One demo as tables."""
    print(f"seed {result['seed']}: {result['seconds']} s, {result['cpu_s']} CPU-s")
    for phase, usage in result["cpu_by_phase"].items():
        seconds = result["phases"].get(phase, 0)
        print(f"  {phase:24} {seconds:6.1f} s {sum(usage.values()):6.1f} CPU-s")
        for name, used in usage.items():
            print(f"    {name:40} {used:6.2f}")
    print(f"  up after: {result['up_after']}")


def main() -> None:
    """Run demos one after the other, print and keep their figures."""
    steps = (int, "train steps; the run file's by default")
    options = options_of(__doc__, "start_up", seeds=[0], steps=steps).parse_args()
    results = []
    for seed in options.seeds:
        results.append(measured(seed, options.steps))
        print_demo(results[-1])
    print("median:", median(one["seconds"] for one in results), "s")
    write(options.json, machine() | {"load_after": round(os.getloadavg()[0], 1), "runs": results})


if __name__ == "__main__":
    main()
