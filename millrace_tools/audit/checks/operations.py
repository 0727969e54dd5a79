"""Seconds, memory and cores of episodes."""

import os
from collections.abc import Sequence
from contextlib import suppress
from statistics import median, quantiles

import psutil

from millrace_tools.audit.answers import always
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.subject import Outcome, Subject
from services.protocol.run.task import Task

OPERATIONS = ("operations.time", "operations.memory", "operations.cores")
_MIB = 1 << 20
_LEAK_MIB, _LARGE_LEAK_MIB = 0.05, 0.5
"""Growth an episode above which it is told, and above which a run of a day would fill a node."""
_SLOW = 20.0
"""Times the median that the slowest episodes may take without a word."""


async def operation_findings(
    subject: Subject, tasks: Sequence[Task], episodes: int
) -> list[Finding]:
    """Plays many episodes in one process of the environment."""
    await subject.restart()
    script = always("")
    await subject.play_all(tasks[:1], [script])  # which imports it
    played: list[Outcome] = []
    sizes: list[float] = []
    began = cpu_seconds()
    while len(played) < episodes:
        played += await subject.play_all(tasks, [script] * len(tasks))
        sizes.append(_resident(subject.processes()))
    cores = (cpu_seconds() - began) / len(played)
    return [_time(played), _memory(sizes, len(tasks)), _cores(cores)]


def cpu_seconds() -> float:
    """CPU that all processes which this one has started have taken, those that ended included.

    A process that left the tree of its parents is not seen.
    """
    here = psutil.Process()
    ended = here.cpu_times()
    total = ended.children_user + ended.children_system
    for process in here.children(recursive=True):
        with suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return float(total)


def _time(played: Sequence[Outcome]) -> Finding:
    seconds = [one.seconds for one in played]
    middle = median(seconds)
    late = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else middle
    verdict = Verdict.WARN if late > max(1.0, _SLOW * middle) else Verdict.PASS
    said = f"median {middle:.3g} s, 95 of 100 below {late:.3g} s, at most {max(seconds):.3g} s"
    question = "How long does an episode take beside the model?"
    return Finding(check="operations.time", question=question, verdict=verdict, evidence=said)


def _memory(sizes: Sequence[float], each: int) -> Finding:
    check, question = "operations.memory", "Does the environment's process keep its size?"
    settled = sizes[len(sizes) // 4 :]
    if not any(sizes) or len(settled) < 2:
        said = "no environment runs" if not any(sizes) else "too few episodes: --episodes"
        return Finding(check=check, question=question, verdict=Verdict.NOT_MEASURED, evidence=said)
    growth = (settled[-1] - settled[0]) / (each * (len(settled) - 1))
    large = growth > _LARGE_LEAK_MIB
    verdict = Verdict.FAIL if large else Verdict.WARN if growth > _LEAK_MIB else Verdict.PASS
    said = f"{settled[-1]:.0f} MiB after {each * len(sizes)} episodes, {growth:+.3f} an episode"
    return Finding(check=check, question=question, verdict=verdict, evidence=said)


def _cores(seconds: float) -> Finding:
    """Empty answers may be graded in no time: those of a model take at least as much."""
    check, question = "operations.cores", "How many cores do episodes take beside the model?"
    rate = f", {1 / seconds:.3g} episodes a second and core" if seconds else ""
    said = f"{seconds:.3g} CPU seconds an episode{rate}, on a machine with {os.cpu_count()} cores"
    return Finding(check=check, question=question, verdict=Verdict.PASS, evidence=said)


def _resident(processes: Sequence[int]) -> float:
    size = 0
    for process in processes:
        with suppress(psutil.Error):
            size += psutil.Process(process).memory_info().rss
    return size / _MIB
