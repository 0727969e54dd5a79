"""The first numbers of the whole loop on this machine, each beside a peer or a limit.

Starts the laptop deployment, trains the example for a few steps, and prints one table:

    python -m benchmarks.first_numbers [--steps 12] [--json FILE]

Every figure is of this run on this machine. Ratios compare with something that ran in the
same minutes: plain vLLM (a replica's own OpenAI server, on the same engine), generation
without updates, a process per test.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import ray
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.wiring import move_to
from services.protocol.reward.reward_service import (
    FunctionTest,
    PythonFunctionGrader,
    ScoreJob,
    Verdict,
)
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.weights.weight_bus import BUS_ACTOR, NAMESPACE, MemberTable
from services.protocol.yaml_text import load_yaml
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring

ROOT = Path(__file__).parents[1]
MODEL = "tiny_code"
MESSAGES = [{"role": "user", "content": "larger of a and 7, times c"}]
READY_S = 240.0
CHATS = 256
CONCURRENT = 64
GAP_TOKENS = 400
SANDBOX_TESTS = 400
SUBPROCESS_TESTS = 40


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    value: str
    beside: str


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="train steps to measure")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    figures = sandbox_figures()
    with tempfile.TemporaryDirectory() as folder, PrivateCluster(num_cpus=2) as cluster:
        url = bring_up(cluster)
        figures += router_figures(url)
        figures += loop_figures(url, cluster.metrics_url, Path(folder), options.steps)
    table = Table("measure", "value", "beside it, in the same run")
    for figure in figures:
        table.add_row(figure.what, figure.value, figure.beside)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps([vars(figure) for figure in figures], indent=1) + "\n")


def bring_up(cluster: PrivateCluster) -> str:
    """Start the laptop deployment on a free port; returns the router's URL."""
    model = ROOT / "models" / "tiny_code-seed0"
    maker = [
        sys.executable,
        "-m",
        "examples.tiny_code.make_model",
        "--seed",
        "0",
        "--out",
        str(model),
    ]
    subprocess.run(maker, cwd=ROOT, check=True, timeout=180)
    content = load_yaml(ROOT / "deploy" / "laptop.yaml")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    move_to(content, port)
    arguments = {app["name"]: app["args"] for app in content["applications"]}
    arguments["trainer"] |= {"model": str(model), "world_size": 2}
    engines = {"model": str(model), "replicas": 2, "max_model_len": 1024}
    arguments["rollout_server"] |= engines
    cluster.start()
    replicas = cluster.deploy(content, Console(), timeout_s=READY_S)
    cluster.wait_for_leases(url, replicas, timeout_s=READY_S)
    return url


def sandbox_figures() -> list[Figure]:
    """Python tests a second through the reward service, against a process per test."""
    rate = asyncio.run(_sandbox_rate())
    started = time.perf_counter()
    program = "print(sum(range(1000)))"
    for _ in range(SUBPROCESS_TESTS):
        subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True)
    peer = SUBPROCESS_TESTS / (time.perf_counter() - started)
    beside = f"{peer:.0f}/s with an unjailed process per test: {rate / peer:.1f}x"
    return [Figure(what="sandboxed Python answers, one core", value=f"{rate:.0f}/s", beside=beside)]


async def _sandbox_rate() -> float:
    grader = PythonFunctionGrader(
        kind="python_function",
        entry_point="f",
        tests=[FunctionTest(args=[n], expected=sum(range(n))) for n in (10, 100, 1000)],
    )
    # The comment keeps answers distinct, so that none comes from the verdict cache.
    jobs = [
        ScoreJob(
            job_id=str(n), completion=f"def f(n):\n    return sum(range(n))  # {n}", grader=grader
        )
        for n in range(SANDBOX_TESTS)
    ]
    scoring = Scoring(RewardServiceConfig(slots=1))
    await scoring.start()
    try:
        await scoring.score(jobs[:4])
        started = time.perf_counter()
        scores = await scoring.score(jobs[4:])
        seconds = time.perf_counter() - started
    finally:
        scoring.close()
    assert all(score.verdict is Verdict.ACCEPTED for score in scores)
    return len(scores) / seconds


def router_figures(url: str) -> list[Figure]:
    """CPU of a short chat through Serve's proxy and the router, against a replica's own API."""
    bus = ray.get_actor(BUS_ACTOR, namespace=NAMESPACE)
    table: MemberTable = ray.get(bus.watch.remote(-1, 0.0), timeout=20)  # type: ignore[assignment]
    addresses = [member.address for member in table.leased]
    for targets in ([url], addresses):  # warm both ways
        asyncio.run(_chats(targets))
    through, by_process = _cpu_ms_per_chat([url])
    plain, _ = _cpu_ms_per_chat(addresses)
    router = by_process.get("router", 0.0)
    proxy = by_process.get("proxy", 0.0)
    return [
        Figure(
            what=f"CPU of a short chat, {CONCURRENT} at once",
            value=f"{through:.1f} ms (router {router:.1f}, Serve proxy {proxy:.1f})",
            beside=f"plain vLLM {plain:.1f} ms: {through / plain:.2f}x",
        )
    ]


def _cpu_ms_per_chat(targets: list[str]) -> tuple[float, dict[str, float]]:
    before = _cpu_by_process()
    asyncio.run(_chats(targets))
    after = _cpu_by_process()
    used = {name: 1000 * (after[name] - before.get(name, 0.0)) / CHATS for name in after}
    return sum(used.values()), used


def _cpu_by_process() -> dict[str, float]:
    """CPU seconds so far of router, proxy, and the rollout servers with their engines."""
    titles = {
        "ray::ServeReplica:router": "router",
        "ray::ProxyActor": "proxy",
        "ray::ServeReplica:rollout_server": "rollout_server",
        "VLLM::": "engine",
    }
    used: dict[str, float] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.Error:
            continue
        for title, name in titles.items():
            if command.startswith(title):
                used[name] = used.get(name, 0.0) + times.user + times.system
    return used


async def _chats(targets: list[str]) -> None:
    gate = asyncio.Semaphore(CONCURRENT)
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "ignore_eos": True}

    async def chat(session: aiohttp.ClientSession, number: int) -> None:
        url = f"{targets[number % len(targets)]}/v1/chat/completions"
        async with gate, session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()

    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await asyncio.gather(*(chat(session, number) for number in range(CHATS)))


def loop_figures(url: str, metrics_url: str, folder: Path, steps: int) -> list[Figure]:
    """Speed of the loop, of a weight push, and what a push does to an answer under way."""
    quiet = _largest_gaps(url, until=lambda: True)
    config = _run_config(folder, steps)
    with RunsClient(url) as client:
        run_id = client.start(config).run_id
        ended = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
        busy = _largest_gaps(url, until=lambda: client.status(run_id).state in ended)
        status = client.status(run_id)
    assert status.state == RunState.FINISHED, status.detail
    lines = (Path(status.run_dir) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines][2:]  # the first steps warm up
    push, paused = _pushes(metrics_url)
    return [
        _tokens_figure(records),
        _phases_figure(records),
        Figure(
            what="weight push, published to committed on a replica",
            value=f"{1000 * push:.0f} ms",
            beside=f"generation stands still for {1000 * paused:.0f} ms of it",
        ),
        Figure(
            what="largest token gap of an answer, median over answers",
            value=f"{1000 * statistics.median(busy):.0f} ms while a run trains and pushes",
            beside=f"{1000 * statistics.median(quiet):.0f} ms on the idle cluster",
        ),
    ]


def _run_config(folder: Path, steps: int) -> RunConfig:
    config = read_run_file(ROOT / "examples" / "tiny_code" / "run.yaml", seed=0, steps=steps)
    changes = {"run_root": str(folder), "evaluation": {"tasks": 4}}
    return RunConfig.model_validate(config.model_dump() | changes)


def _tokens_figure(records: list[dict[str, Any]]) -> Figure:
    seconds = records[-1]["elapsed_s"] - records[0]["elapsed_s"]
    tokens = records[-1]["tokens_generated"] - records[0]["tokens_generated"]
    per_step = seconds / (len(records) - 1)
    return Figure(
        what="demo tokens, whole loop",
        value=f"{tokens / seconds:.0f}/s",
        beside=f"{per_step:.2f} s a train step of 256 trajectories",
    )


def _phases_figure(records: list[dict[str, Any]]) -> Figure:
    def median(*path: str) -> float:
        values = []
        for record in records:
            value: Any = record
            for key in path:
                value = value[key]
            values.append(value)
        return statistics.median(values)

    return Figure(
        what="train step by phase, overlapping",
        value=f"rollout {median('rollout_s_mean'):.2f} s, score {median('score_s_mean'):.2f} s",
        beside=f"train {median('seconds', 'train'):.2f} s, of it "
        f"forward and backward {median('trainer_seconds', 'forward_backward'):.2f} s",
    )


def _largest_gaps(url: str, *, until: Callable[[], bool]) -> list[float]:
    """The largest pause between two chunks of each of several long streamed answers."""
    gaps: list[float] = []
    while not gaps or not until():
        gaps.append(_largest_gap(url))
    return gaps


def _largest_gap(url: str) -> float:
    body = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": GAP_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    arrivals: list[float] = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.perf_counter())
    return max(later - earlier for earlier, later in pairwise(arrivals))


def _pushes(metrics_url: str) -> tuple[float, float]:
    """Mean seconds of a push and of the pause in it, from Ray's Prometheus endpoint."""
    wanted = {"ray_millrace_bus_push_seconds": 0.0, "ray_millrace_bus_paused_seconds": 0.0}
    exported = threading.Event()
    for _ in range(30):
        for name in wanted:
            wanted[name] = _mean(httpx.get(metrics_url, timeout=10).text, name)
        if all(wanted.values()):
            break
        exported.wait(1.0)  # Ray exports every few seconds
    push, paused = wanted.values()
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
