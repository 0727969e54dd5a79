"""How full the engine is, on the replica's own `/metrics`, for routers.

vLLM shows its metrics there unless they go to Ray, as ours do; then the page is empty. These
three keep vLLM's own names, so a router reads the same page of every vLLM.
"""

from functools import cache
from typing import Any

from prometheus_client import Gauge
from vllm.v1.metrics.loggers import StatLoggerBase


@cache
def _gauges() -> tuple[Gauge, Gauge, Gauge]:
    # Made as late as can be: vLLM's own loggers unregister all that has its names.
    return (
        Gauge("vllm:num_requests_running", "Sequences in the batch", ["engine"]),
        Gauge("vllm:num_requests_waiting", "Sequences in the engine's queue", ["engine"]),
        Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use", ["engine"]),
    )


class PressureGauges(StatLoggerBase):
    """A logger of vLLM's statistics that keeps the last of three of them.

    It comes after vLLM's own in the list of loggers.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        labelled = (gauge.labels(str(engine_index)) for gauge in _gauges())
        self._running, self._waiting, self._kv_usage = labelled

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after each step."""
        if scheduler_stats is None:
            return
        self._running.set(scheduler_stats.num_running_reqs)
        waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self._waiting.set(waiting)
        self._kv_usage.set(scheduler_stats.kv_cache_usage)

    def log_engine_initialized(self) -> None:
        """There is nothing to say."""
