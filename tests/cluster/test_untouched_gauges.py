"""Gauges that nobody sets stay. The last file of this folder: others pass the time until then."""

import time

from services.observability.metrics import GAUGE_REFRESH_S
from tests.cluster.conftest import METRICS, Cluster

FORGOTTEN_S = 20
"""Ray forgets a gauge after two report intervals of ten seconds."""


def test_gauges_outlive_what_ray_forgets(cluster: Cluster, metrics_seen: dict[str, float]) -> None:
    due = max(metrics_seen.values()) + FORGOTTEN_S + GAUGE_REFRESH_S
    cluster.wait_for(
        lambda: time.monotonic() > due and set(cluster.metrics()) == set(METRICS),
        "the same metrics a forgetting interval later",
    )
