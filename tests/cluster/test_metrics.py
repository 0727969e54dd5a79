"""What Prometheus would scrape; see also `test_untouched_gauges`."""

from tests.cluster.conftest import METRICS


def test_metrics_of_every_process_reach_rays_endpoint(metrics_seen: dict[str, float]) -> None:
    assert set(metrics_seen) == set(METRICS)
