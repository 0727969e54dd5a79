"""Engines that sleep and wake: memory is given back, and answers come as before."""

import asyncio
from collections.abc import Mapping

import psutil

from millrace_tools.accept.answers import Answer, Answers
from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.services import MODEL, Services
from millrace_tools.accept.stage import NotTried, Outcome, Stage
from millrace_tools.doctor.gpu_probe import gpus
from services.protocol.errors import InvalidInput

_LEVELS = (1, 2, 1, 2, 1)
_QUICK_LEVELS = (1, 2)
_TOKENS = 32
_GROWTH = 0.1
"""Share by which an engine may take more memory after the last time than after the first."""


def sleep(bench: Bench, deadline: Deadline) -> Outcome:
    """Order sleep and wake-up through the weight bus, at both levels in turn."""
    services = bench.running
    services.wait_until_whole(deadline)
    member = services.table().leased[0]
    levels = _QUICK_LEVELS if bench.quick else _LEVELS
    given_back, awake = [], []
    _answer(services, deadline)  # an engine that has answered holds what it will hold
    for count, level in enumerate(levels):
        before = memory_mib(member.pid, on_gpu=bench.gpus > 0)
        try:
            services.order(member.replica_id, "sleep", deadline, level=level)
        except InvalidInput as refusal:
            if count:
                raise
            raise NotTried(str(refusal)) from None
        try:
            asleep = memory_mib(member.pid, on_gpu=bench.gpus > 0)
        finally:
            services.order(member.replica_id, "wake_up", deadline)
        services.wait_until_whole(deadline)
        _answer(services, deadline)
        given_back.append(before - asleep)
        awake.append(memory_mib(member.pid, on_gpu=bench.gpus > 0))
    figures = {
        "times": len(levels),
        "given back, least": min(given_back),
        "awake, first": awake[0],
        "awake, last": awake[-1],
    }
    return Outcome(figures=_shown(figures), problem=_problem(given_back, awake))


def _answer(services: Services, deadline: Deadline) -> Answer:
    """One of every engine."""

    async def ask() -> Answer:
        async with Answers(services.url, MODEL) as answers:
            return (await answers.several(2 * services.replicas, _TOKENS))[0]

    return asyncio.run(asyncio.wait_for(ask(), deadline.left_s("answers of engines awake")))


def memory_mib(pid: int, *, on_gpu: bool) -> float:
    """Memory that is in use: of all GPUs, or of a replica's processes."""
    if on_gpu:
        return float(sum(one.used_mib for one in gpus().seen))
    root = psutil.Process(pid)
    held = (one.memory_info().rss for one in (root, *root.children(recursive=True)))
    return sum(held) / (1 << 20)


def _problem(given_back: list[float], awake: list[float]) -> str:
    if min(given_back) <= 0:
        return f"an engine that slept gave back {min(given_back):.0f} MiB"
    if awake[-1] > (1 + _GROWTH) * awake[0]:
        return f"memory of the engine grew from {awake[0]:.0f} to {awake[-1]:.0f} MiB"
    return ""


def _shown(figures: Mapping[str, float]) -> tuple[Figure, ...]:
    return tuple(
        Figure(name=name, value=value, unit="" if name == "times" else "MiB")
        for name, value in figures.items()
    )


STAGES = (
    Stage(
        name="sleep",
        purpose="an engine sleeps and wakes again and again, and gives its memory back",
        deadline_s=600.0,
        run=sleep,
        services=True,
    ),
)
