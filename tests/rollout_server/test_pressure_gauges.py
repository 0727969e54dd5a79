"""What a replica shows of its engine's load."""

from prometheus_client import generate_latest
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import SchedulerStats

from services.rollout_server.engine.vllm_patches.pressure_gauges import PressureGauges
from services.router.placement.probes import read_pressure


def test_the_page_that_vllm_leaves_empty_for_ray_tells_a_router_how_full_the_engine_is() -> None:
    unregister_vllm_metrics()  # as vLLM's logger for Ray does when it is made
    gauges = PressureGauges(None)
    stats = SchedulerStats(
        num_running_reqs=5, num_waiting_reqs=2, num_skipped_waiting_reqs=1, kv_cache_usage=0.25
    )
    gauges.record(stats, None)
    gauges.record(None, None)
    pressure = read_pressure(generate_latest().decode())
    assert pressure is not None
    assert (pressure.running, pressure.waiting, pressure.kv_usage) == (5, 3, 0.25)
