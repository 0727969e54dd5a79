"""Imported by the process that those of a scene are forked from, and by nobody else."""

import functools
import time
from collections.abc import Callable
from typing import Any

from services.observability.garbage import heavy_imports

with heavy_imports():
    # What an engine would import in each of its processes after they were forked.
    import vllm.model_executor.models.qwen3
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.v1.engine.core import EngineCoreProc

    import tests.chaos.children  # noqa: F401
    from tests.chaos.answers import STREAMS

STEP_S = 0.02
"""As long as a step takes a model of some size."""


def unhurried(step: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A step of an engine that has only a client's few streams: they never end, and the tiny
    model would keep every core busy with them while a test waits for something else."""

    @functools.wraps(step)
    def pause_after(core: Any) -> bool:
        executed = step(core)
        if len(core.scheduler.running) <= STREAMS:
            time.sleep(STEP_S)
        return executed

    return pause_after


EngineCoreProc._process_engine_step = unhurried(EngineCoreProc._process_engine_step)
