"""How busy the nodes of the cluster are, from the metric pages that Ray serves on each."""

import asyncio
from statistics import fmean
from typing import Any

import aiohttp
import ray
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_NAMES = (
    "ray_node_cpu_utilization",
    "ray_node_mem_used",
    "ray_node_mem_total",
    "ray_node_gpus_utilization",
    "ray_node_gram_used",
    "ray_node_gram_available",
)
NodeUse = dict[str, dict[str, float]]
"""Shares in use by address of the node and resource: `cpu`, `memory`, `gpu`, `gpu_memory`."""


async def node_use() -> NodeUse:
    """Ask every node; one that does not answer is left out."""
    pages = await asyncio.to_thread(_pages)
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
        found = await asyncio.gather(*(_use_of(http, url) for url in pages.values()))
    return {node: use for node, use in zip(pages, found, strict=True) if use}


def _pages() -> dict[str, str]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeManagerAddress"]: metric_page(node) for node in alive}


def metric_page(node: dict[str, Any]) -> str:
    """Where a node of `ray.nodes` serves its metrics."""
    host = node["NodeManagerAddress"]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{node['MetricsExportPort']}/metrics"


async def _use_of(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    try:
        async with http.get(url) as answer:
            return use_on(await answer.text())
    except (TimeoutError, aiohttp.ClientError, ValueError):  # the last: no page of metrics
        return {}


def use_on(page: str) -> dict[str, float]:
    """The shares in use on a node; resources that it does not have are left out.

    Raises:
        ValueError: it is no page of metrics.
    """
    lines = "\n".join(line for line in page.splitlines() if line.startswith(_NAMES))
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            values.setdefault(sample.name.removeprefix("ray_node_"), []).append(sample.value)
    use = {}
    if cpus := values.get("cpu_utilization"):
        use["cpu"] = fmean(cpus) / 100
    if total := sum(values.get("mem_total", [])):
        use["memory"] = sum(values.get("mem_used", [])) / total
    if gpus := values.get("gpus_utilization"):
        use["gpu"] = fmean(gpus) / 100
    used = sum(values.get("gram_used", []))
    if all_of_it := used + sum(values.get("gram_available", [])):
        use["gpu_memory"] = used / all_of_it
    return {name: round(share, 4) for name, share in use.items()}
