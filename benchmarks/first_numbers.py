"""The first numbers of the whole loop on this machine, each beside a peer or a limit.

Starts the laptop deployment, trains the example for a few steps, and prints one table:

    python -m benchmarks.first_numbers [--steps 12] [--json FILE]

Every figure is of this run on this machine. Ratios compare with something that ran in the
same minutes: plain vLLM (a replica's own OpenAI server, on the same engine), generation
without updates, a process per test.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import ray
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.processes import CpuMeter, name_by_title, since
from benchmarks.report import options_of, show, write
from benchmarks.reward.load import samples, shared_tests
from benchmarks.reward.ways import by_service, process_each, service
from benchmarks.router.load import MESSAGES, Load, put
from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.demo.demo import RUN_FILE, DemoOptions
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.weights.weight_bus import BUS_ACTOR, NAMESPACE, MemberTable

MODEL = "tiny_code"
CHATS = Load(name="chats", concurrency=64, requests=256, tokens=8, stream=False)
GAP_TOKENS = 400
TITLES = {
    "ray::ServeReplica:router": "router",
    "ray::ProxyActor": "proxy",
    "ray::ServeReplica:rollout_server": "rollout_server",
    "VLLM::": "engine",
}
"""How command lines begin, and names of the processes."""

Figure = tuple[str, str, str]
"""Name, value, and the value beside it."""


def main() -> None:
    """Run everything and print the table."""
    options = options_of(
        __doc__, steps=(12, "train steps to measure"), json=(Path, "also write the figures here")
    ).parse_args()
    figures = [asyncio.run(sandbox_figure())]
    demo = DemoOptions(seed=0, port=free_port(), steps=options.steps)
    two = {
        "trainer": {"world_size": 2},
        "rollout_server": {"replicas": 2, "max_model_len": 1024},
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        deployed(demo, Console(), **two) as cluster,
    ):
        figures.append(router_figure(demo.url))
        figures += loop_figures(demo.url, cluster.metrics_url, folder, options.steps)
    columns = ("measure", "value", "beside it, in the same run")
    show(columns, figures)
    write(
        options.json, [dict(zip(("what", "value", "beside"), one, strict=True)) for one in figures]
    )


async def sandbox_figure() -> Figure:
    """Python tests a second through the reward service, against a process per test."""
    tests = shared_tests()
    async with service(1) as scoring:
        await by_service(scoring, samples("python", 2, tests=tests, round_=-1))
        ours, _ = await by_service(scoring, samples("python", 40, tests=tests))
    with process_each(1, jailed=False) as each:
        peer = each(samples("python", 4, tests=tests))
    rate, theirs = ours.per_core(1), peer.per_core(1)
    beside = f"{theirs:.0f}/s with an unjailed process per test: {rate / theirs:.1f}x"
    return "sandboxed Python tests, one core", f"{rate:.0f}/s", beside


def router_figure(url: str) -> Figure:
    """CPU of a short chat through Serve's proxy and the router, against a replica's own API."""
    bus = ray.get_actor(BUS_ACTOR, namespace=NAMESPACE)
    table: MemberTable = ray.get(bus.watch.remote(-1, 0.0), timeout=20)  # type: ignore[assignment]
    plain = [member.address for member in table.leased]
    for targets in ([url], plain):  # warm both ways
        asyncio.run(put(CHATS, targets, MODEL))
    through, direct = _cpu_ms_per_chat([url]), _cpu_ms_per_chat(plain)
    total, peer = sum(through.values()), sum(direct.values())
    router, proxy = through.get("router", 0.0), through.get("proxy", 0.0)
    return (
        f"CPU of a short chat, {CHATS.concurrency} at once",
        f"{total:.1f} ms (router {router:.1f}, Serve proxy {proxy:.1f})",
        f"plain vLLM {peer:.1f} ms: {total / peer:.2f}x",
    )


def _cpu_ms_per_chat(targets: Sequence[str]) -> dict[str, float]:
    meter = CpuMeter(os.getpid(), lambda process: name_by_title(process, TITLES, "others"))
    before = meter.read()
    outcome = asyncio.run(put(CHATS, targets, MODEL))
    assert not outcome.errors, outcome.errors[0]
    used = since(before, meter.read())
    return {name: 1000 * used[name] / CHATS.requests for name in used.keys() - {"others"}}


def loop_figures(url: str, metrics_url: str, folder: str, steps: int) -> Iterator[Figure]:
    """Speed of the loop, of a weight push, and what a push does to an answer under way."""
    quiet = _largest_gaps(url, until=lambda: True)
    config = read_run_file(RUN_FILE, seed=0, steps=steps)
    changes = {"run_root": folder, "evaluation": {"tasks": 4}}
    with RunsClient(url) as client:
        run_id = client.start(RunConfig.model_validate(config.model_dump() | changes)).run_id
        busy = _largest_gaps(url, until=lambda: client.status(run_id).state in ENDED)
        status = client.status(run_id)
    assert status.state == RunState.FINISHED, status.detail
    lines = (Path(status.run_dir) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines][2:]  # the first steps warm up
    seconds = records[-1]["elapsed_s"] - records[0]["elapsed_s"]
    tokens = records[-1]["tokens_sampled"] - records[0]["tokens_sampled"]
    a_step = f"{seconds / (len(records) - 1):.2f} s a train step of 256 trajectories"
    yield "demo tokens, whole loop", f"{tokens / seconds:.0f}/s", a_step

    def middle(figure: Callable[[dict[str, Any]], float]) -> str:
        return f"{median(map(figure, records)):.2f} s"

    yield (
        "train step by phase, overlapping",
        f"rollout {middle(lambda one: one['rollout_s_mean'])}, "
        f"score {middle(lambda one: one['score_s_mean'])}",
        f"train {middle(lambda one: one['seconds']['train'])}, of it forward and backward "
        f"{middle(lambda one: one['trainer_seconds']['forward_backward'])}",
    )
    push, paused = _pushes(metrics_url)
    yield (
        "weight push, published to committed on a replica",
        f"{1000 * push:.0f} ms",
        f"generation stands still for {1000 * paused:.0f} ms of it",
    )
    yield (
        "largest token gap of an answer, median over answers",
        f"{1000 * median(busy):.0f} ms while a run trains and pushes",
        f"{1000 * median(quiet):.0f} ms on the idle cluster",
    )


def _largest_gaps(url: str, *, until: Callable[[], bool]) -> list[float]:
    """The largest pause between two chunks of each of several long streamed answers."""
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": GAP_TOKENS}
    body |= {"ignore_eos": True, "stream": True}
    gaps: list[float] = []
    while not gaps or not until():
        arrivals: list[float] = []
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    arrivals.append(time.perf_counter())
        gaps.append(max(later - earlier for earlier, later in pairwise(arrivals)))
    return gaps


def _pushes(metrics_url: str) -> tuple[float, float]:
    """Mean seconds of a push and of the pause in it, from Ray's Prometheus endpoint."""
    names = ("ray_millrace_bus_push_seconds", "ray_millrace_bus_paused_seconds")
    for _ in range(30):
        text = httpx.get(metrics_url, timeout=10).text
        push, paused = (_mean(text, name) for name in names)
        if push and paused:
            break
        time.sleep(1.0)  # Ray exports every few seconds
    return push, paused


def _mean(text: str, name: str) -> float:
    total = count = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            total += sample.value if sample.name == f"{name}_sum" else 0.0
            count += sample.value if sample.name == f"{name}_count" else 0.0
    return total / count if count else 0.0


if __name__ == "__main__":
    main()
