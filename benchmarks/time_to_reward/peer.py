"""TRL's side of `time_to_reward`: starts `trl_side.py` and reads its messages."""

import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import next_message, start
from benchmarks.time_to_reward.goal import Goal, Side
from services.protocol.run.orchestrator import RunConfig

_STARTUP_S = 300.0


def reach(goal: Goal, run: RunConfig, model: Path, python: Path, **how: Any) -> Side:
    """Train to the goal in TRL's own environment; `how`: its `threads` and its `grading`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = {"goal": vars(goal), "run": run.model_dump(mode="json"), "model": str(model), **how}
        (Path(folder) / "job.json").write_text(json.dumps(job))
        process = start("time_to_reward.trl_side", folder, python=python)
        # It stops itself in time; this is for one that hangs.
        watchdog = threading.Timer(_STARTUP_S + 2 * goal.seconds, process.kill)
        watchdog.start()
        try:
            return _read(process, began)
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()


def _read(process: subprocess.Popen[str], began: float) -> Side:
    """It prints a line of JSON when training begins and after each evaluation."""
    startup_s = startup_cpu_s = 0.0
    rates: list[tuple[int, float]] = []
    while True:
        message = next_message(process)
        if message["event"] == "training begins":
            startup_s, startup_cpu_s = time.monotonic() - began, message["cpu_s"]
            continue
        rates.append((message["step"], message["pass_rate"]))
        if message["event"] == "end":
            return Side(
                reached=message["reached"],
                steps=message["step"],
                train_s=message["train_s"],
                train_cpu_s=message["cpu_s"],
                startup_s=startup_s,
                startup_cpu_s=startup_cpu_s,
                rates=rates,
            )
