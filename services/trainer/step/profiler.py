"""torch's profiler over some train steps of this rank, and a table of where their time went."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from services.disk import free_bytes, replace_file
from services.observability.log import Log
from services.protocol.run.profile import PROFILE_SPACE, ProfileRequest, RankProfile
from services.trainer.heartbeat import HEARTBEAT

MOST_EVENTS = 1_000_000
"""Of a trace that is looked at: about 4 KB of memory and 45 us each, and 400 bytes as text."""
MOST_PASSES = 16
"""Micro-batches that are recorded of each kind of pass, over all steps of a profile: those of
training make 0.4 M events of a model with 36 layers."""
_TOP = 12
_KINDS = {
    "collectives": ("nccl", "c10d", "gloo:", "fsdp::", "comms", "all_gather", "reduce_scatter"),
    "attention": ("attention", "flash", "fmha", "sdpa", "::_softmax"),
    "optimizer": ("adam", "optimizer.", "foreach"),
    "matmul": ("mm", "gemm", "cutlass", "nvjet", "matmul", "linear"),
}
"""Kinds of operators by parts of their names; the first that fits counts."""

_log = Log("trainer")


class StepProfiler:
    """Waits for a request, profiles its steps and leaves trace and table in its folder.

    Of each step the first micro-batches of scoring, training and the critic are recorded, and all
    that is no micro-batch. A problem of the files is told in the table; it never breaks a step.
    """

    def __init__(self, device: str) -> None:
        self._activities = [ProfilerActivity.CPU]
        if device == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._device = device
        self._request: ProfileRequest | None = None
        self._running: Any = None
        self._phases, self._done = dict[str, float](), 0
        self._passes, self._records = Counter[str](), False
        self._began_s = self._changed_s = self._recorded_s = 0.0

    def ask(self, request: ProfileRequest) -> None:
        """Profile the next steps, if this rank is one that the request names."""
        self.drop()
        if dist.get_rank() in request.ranks:
            self._request, self._done, self._phases = request, 0, {}

    def drop(self) -> None:
        """Forget what was asked for: another run begins."""
        HEARTBEAT.when_entered(None)
        if self._running is not None:
            self._running.stop()
        self._request = self._running = None

    def before_step(self) -> None:
        """A train step begins."""
        if self._request is None:
            return
        self._passes.clear()
        if self._running is None:
            self._running = profile(activities=self._activities)
            self._began_s = self._changed_s = time.perf_counter()
            self._recorded_s, self._records = 0.0, True
            self._running.start()
            HEARTBEAT.when_entered(self._enter)

    def after_step(self, step: int, seconds: Mapping[str, float]) -> None:
        """A train step is done; `seconds` are those of its phases."""
        if self._request is None or self._running is None:
            return
        self._done += 1
        for phase, took in seconds.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + took
        if self._done < self._request.steps:
            return
        self._record(True)  # counts the time until now
        wall_s = time.perf_counter() - self._began_s
        HEARTBEAT.when_entered(None)
        HEARTBEAT.enter("saving")  # a large trace takes its time
        request, running = self._request, self._running
        self._request = self._running = None
        running.stop()
        self._write(Path(request.folder), running, step, wall_s)

    def _enter(self, phase: str, parts: int) -> None:
        """A phase of the step begins, or the next of its micro-batches."""
        assert self._request is not None, "called between the two ends of a profile"
        self._passes[phase] += parts > 0
        self._record(self._passes[phase] <= max(1, MOST_PASSES // self._request.steps))

    def _record(self, records: bool) -> None:
        now = time.perf_counter()
        self._recorded_s += (now - self._changed_s) if self._records else 0.0
        self._changed_s = now
        if records != self._records:
            self._running.toggle_collection_dynamic(records, self._activities)
            self._records = records

    def _write(self, folder: Path, done: Any, step: int, wall_s: float) -> None:
        rank = dist.get_rank()
        trace, problem = folder / f"rank{rank}.trace.json.gz", ""
        by_name: dict[str, float] = {}
        events = len(done.profiler.kineto_results.events())
        if events > MOST_EVENTS:
            problem = f"{events} events were recorded, {MOST_EVENTS} at most: profile fewer steps"
        else:
            by_name = _self_seconds(done, self._device)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            problem = problem or _no_space(folder)
            if not problem:
                done.export_chrome_trace(str(trace))
        except (OSError, RuntimeError) as error:
            problem = f"the trace was not written: {error}"
        if problem:
            trace.unlink(missing_ok=True)
            _log.warning("profile_incomplete", rank=rank, why=problem)
        table = RankProfile(
            rank=rank,
            last_step=step,
            steps=self._done,
            seconds=wall_s,
            recorded_seconds=self._recorded_s,
            phases=self._phases | {"between": max(0.0, wall_s - sum(self._phases.values()))},
            kinds=_kinds(by_name, self._recorded_s),
            operators=dict(sorted(by_name.items(), key=lambda one: -one[1])[:_TOP]),
            trace="" if problem else str(trace),
            problem=problem,
        )
        with suppress(OSError):  # the log has it
            replace_file(folder / f"rank{rank}.json", table.model_dump_json().encode())


def _no_space(folder: Path) -> str:
    """Why the trace is not written; empty if there is space for it."""
    free = free_bytes(folder)
    if free < PROFILE_SPACE:
        return f"{free >> 20} MiB are free in {folder}, a trace may need {PROFILE_SPACE >> 20}"
    return ""


def _self_seconds(done: Any, device: str) -> dict[str, float]:
    """Seconds by operator, those of operators inside it left out: of kernels on CUDA."""
    on_gpu = device == "cuda"
    seconds: dict[str, float] = {}
    for one in done.key_averages():
        if on_gpu and one.device_type.name == "CPU":
            continue  # kernels have events of their own
        took = one.self_device_time_total if on_gpu else one.self_cpu_time_total
        if took > 0:
            seconds[one.key] = seconds.get(one.key, 0.0) + took / 1e6
    return seconds


def _kinds(by_name: Mapping[str, float], recorded_s: float) -> dict[str, float]:
    """Seconds by kind of operator; `idle` is what is left of the recorded time."""
    kinds = dict.fromkeys((*_KINDS, "other"), 0.0)
    for name, took in by_name.items():
        kinds[kind_of(name)] += took
    return kinds | {"idle": max(0.0, recorded_s - sum(kinds.values()))}


def kind_of(name: str) -> str:
    """`collectives`, `attention`, `optimizer`, `matmul` or `other`, by an operator's name."""
    low = name.lower()
    fits = (kind for kind, parts in _KINDS.items() if any(part in low for part in parts))
    return next(fits, "other")
