"""How busy engines and nodes are, as a run records it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.observability.metrics import RunMetrics
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.node_use import metric_page, use_on
from services.orchestrator.observers.usage_record import follow_usage
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunRequest
from tests.orchestrator.fakes import world

PAGE = """\
# HELP ray_node_cpu_utilization Total CPU usage on a ray node
# TYPE ray_node_cpu_utilization gauge
ray_node_cpu_utilization{ip="10.0.0.1",IsHeadNode="true"} 42.5
ray_node_mem_used{ip="10.0.0.1"} 2.0e+09
ray_node_mem_total{ip="10.0.0.1"} 8.0e+09
ray_node_gpus_utilization{ip="10.0.0.1",GpuIndex="0"} 90.0
ray_node_gpus_utilization{ip="10.0.0.1",GpuIndex="1"} 70.0
ray_node_gram_used{ip="10.0.0.1",GpuIndex="0"} 30.0
ray_node_gram_available{ip="10.0.0.1",GpuIndex="0"} 10.0
ray_serve_something_else{ip="10.0.0.1"} 1.0
"""


def test_the_metric_page_of_a_node_says_what_is_in_use() -> None:
    assert use_on(PAGE) == {"cpu": 0.425, "memory": 0.25, "gpu": 0.8, "gpu_memory": 0.75}


@pytest.mark.parametrize(
    ("address", "url"),
    [("10.0.0.1", "http://10.0.0.1:80/metrics"), ("fd00::1", "http://[fd00::1]:80/metrics")],
)
def test_a_node_is_asked_at_its_address_of_either_version(address: str, url: str) -> None:
    assert metric_page({"NodeManagerAddress": address, "MetricsExportPort": 80}) == url


def test_a_node_without_gpus_says_nothing_of_them() -> None:
    lines = [line for line in PAGE.splitlines() if "_g" not in line]
    assert use_on("\n".join(lines)) == {"cpu": 0.425, "memory": 0.25}
    assert use_on("") == {}


async def test_a_run_writes_the_load_of_engines_and_nodes(tmp_path: Path) -> None:
    async def nodes() -> dict[str, dict[str, float]]:
        return {"10.0.0.1": {"cpu": 0.5}}

    async with world(tmp_path) as cluster:
        cluster.router.load = RouterLoad(
            replicas=2, full=0, in_flight=3, waiting=0, queued=0.0, kv_usage=0.25, max_choices=64
        )
        runs = Runs(cluster.config, lambda: replace(cluster.peers, nodes=nodes))
        started = await runs.start(RunRequest(config=cluster.run_config()))
        async with asyncio.timeout(120):
            status = await runs.ended(started.run_id)
    first, *_ = lines_of(Path(status.run_dir) / "usage.jsonl")
    assert first["nodes"] == {"10.0.0.1": {"cpu": 0.5}}
    assert (first["engines"]["in_flight"], first["engines"]["kv_usage"]) == (3, 0.25)


async def test_a_look_that_fails_is_counted_and_the_next_one_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[dict[str, str]] = []
    count = lambda _, tags: failed.append(tags)  # noqa: E731
    monkeypatch.setattr(RunMetrics.observer_failures, "inc", count)
    looks: list[int] = []
    seen = asyncio.Event()

    async def load(_: object) -> RouterLoad | None:
        looks.append(len(looks))
        if len(looks) == 1:
            raise RuntimeError("a defect")
        if len(looks) == 4:
            seen.set()
        return None

    async def nodes() -> dict[str, dict[str, float]]:
        return {"a": {"cpu": 0.5}}

    async with world(tmp_path) as cluster:
        peers = replace(cluster.peers, load=load, nodes=nodes)
        context: Any = type("Context", (), {"peers": peers, "config": None, "tags": {}})()
        path = tmp_path / "usage.jsonl"
        follower = asyncio.create_task(follow_usage(context, path, look_s=0.001))
        async with asyncio.timeout(300):
            await seen.wait()
        follower.cancel()
        await asyncio.wait({follower})
    assert lines_of(path)[0]["nodes"] == {"a": {"cpu": 0.5}}
    assert failed == [{"observer": "usage"}]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
