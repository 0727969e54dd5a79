"""What Prometheus would scrape."""

import time

import httpx

from services.observability.metrics import GAUGE_REFRESH_S
from tests.cluster.conftest import Cluster

WANTED = (
    "ray_millrace_bus_newest_version",
    "ray_millrace_bus_commits_total",
    "ray_millrace_rollout_version",
    "ray_millrace_router_sessions",
    "ray_vllm_request_success_total",
)


def test_metrics_of_every_process_reach_rays_endpoint_and_gauges_stay(cluster: Cluster) -> None:
    seen: dict[str, float] = {}

    def scrape() -> bool:
        text = httpx.get(cluster.metrics_url, timeout=10).text
        now = time.monotonic()
        seen.update({name: now for name in WANTED if name in text})
        return len(seen) == len(WANTED)

    cluster.wait_for(scrape, "all wanted metrics", timeout_s=60)
    # Ray forgets a gauge after two report intervals of ten seconds; ours must outlive that.
    due = max(seen.values()) + 20 + GAUGE_REFRESH_S
    seen.clear()
    cluster.wait_for(
        lambda: time.monotonic() > due and scrape(),
        "the same metrics a forgetting interval later",
        timeout_s=60,
    )
