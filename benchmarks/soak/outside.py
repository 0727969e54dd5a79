"""Agents outside play thousands of sessions of a run, and a tenth of them does not end theirs.

    python -m benchmarks.soak.outside --sessions 2000 --json

The services of deploy/laptop.yaml on a private cluster train the example on what agents outside
answer. An agent takes a session, asks, and finishes it; one in ten does not, in one of five ways.
Every session that was taken must be counted by how it ended, the ledger must balance, no late
reward may change anything, and no process may grow. Exit code 1 and the reasons if not.

Twice as many sessions come before those that are judged: whatever the services keep up to a bound
is full by then, as the bounds are small here. From then on a session may leave nothing behind.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import httpx
from rich.console import Console

from benchmarks.deployment import deployed
from benchmarks.report import ROOT, options_of
from benchmarks.soak.census import Census, Rules
from benchmarks.soak.engine import Findings, conclude
from benchmarks.soak.runs import cluster_processes
from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.demo.demo import DemoOptions
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.protocol.session import SESSION_PREFIX

GROUPS, GROUP_SIZE, AGENTS = 16, 8, 32
PROGRESS_S, TAKE_S, COUNT_S, EXPORT_S = 15.0, 5.0, 10.0, 30.0
LONGEST_S = 3600.0
ABANDONED = 0.1
WAYS = ("never calls", "leaves in the middle", "fails", "is late", "says a bad reward")
WARM_UP = 2
"""Times the sessions that are judged."""
SMALL: dict[str, dict[str, Any]] = {
    "rollout_server": {"kv_cache_gb": 0.03},
    "reward_service": {"cache_mb": 1, "program_cache_mb": 1},
    "router": {"max_recorded_sessions": 1000, "max_sessions": 1000, "max_stored_responses": 100},
}
"""What services keep up to a bound fills within the warm-up."""
PRIMITIVES = "64"
"""Kernels that oneDNN keeps in an engine, one for each number of tokens in a step. Of 1,024, its
own bound, each a few dozen to hundreds of KiB, a soak of minutes sees no end."""
OUTCOMES = {"plays": "played", "fails": "agent_failed"}
"""How the run counts a session by what its agent did; it waits in vain for all others."""
REFUSED = {"is late": {404, 409}, "says a bad reward": {400}}
"""Answers to a reward that must not count."""
UNTAKEN = {"is late": "late", "says a bad reward": "invalid"}
"""How the router counts it."""
RULES = Rules(
    more={"rss_mib": 6.0, "fds": 24.0, "threads": 24.0},  # what allocators take and give back
    more_each={"rss_mib": 2 / 1024},  # a session that is kept has ten KiB and more
    settled=WARM_UP / (WARM_UP + 1),
    warm_s=120.0,
    counts=10,
    least_share=0.2,
)
ENDED = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)


class Agents:
    """Agents outside, which know the router's address alone.

    Attributes:
        ended: sessions that they took, by what they did with them.
    """

    def __init__(self, url: str, findings: Findings, seed: int) -> None:
        limits = httpx.Limits(max_connections=4 * AGENTS)
        self._router = httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits)
        self._findings, self._chance = findings, Random(seed)
        self.ended: Counter[str] = Counter()
        self._late: set[asyncio.Task[None]] = set()

    async def play(self, over: asyncio.Event) -> None:
        """Take sessions until it is over."""
        async with self._router, asyncio.TaskGroup() as agents:
            for _ in range(AGENTS):
                agents.create_task(self._agent(over))
            await over.wait()
            await asyncio.gather(*self._late)

    async def _agent(self, over: asyncio.Event) -> None:
        while not over.is_set():
            taken = (await self._post("take", wait_s=TAKE_S)).json()
            if taken["session"] is not None:
                await self._session(taken["session"]["id"], taken["task"])

    async def _session(self, session: str, task: dict[str, Any]) -> None:
        abandoned = self._chance.random() < ABANDONED
        way = self._chance.choice(WAYS) if abandoned else "plays"
        self.ended[way] += 1
        if way != "never calls":
            await self._ask(session, task)
        if way == "plays":
            await self._end(session, way)  # its task's grader judges the answer
        elif way == "fails":
            await self._end(session, way, failure="on purpose")
        elif way == "says a bad reward":
            await self._end(session, way, reward="much")
        elif way == "is late":
            late = asyncio.create_task(self._too_late(session))
            self._late.add(late)
            late.add_done_callback(self._late.discard)

    async def _ask(self, session: str, task: dict[str, Any]) -> None:
        asked = {"model": "any", "messages": task["messages"]}
        headers = {"authorization": f"Bearer {session}"}
        answer = await self._router.post("/v1/chat/completions", json=asked, headers=headers)
        if answer.status_code != 200:
            self._findings.wrong("call", f"{answer.status_code} {answer.text[:200]}")

    async def _too_late(self, session: str) -> None:
        await asyncio.sleep(2 * PROGRESS_S)
        await self._end(session, "is late", reward=1.0)

    async def _end(self, session: str, way: str, **ending: Any) -> None:
        answer = await self._post(f"{session}/finish", **ending)
        if answer.status_code not in REFUSED.get(way, {200}):
            self._findings.wrong("ending", f"{way}: {answer.status_code} {answer.text[:200]}")

    async def _post(self, path: str, **body: Any) -> httpx.Response:
        return await self._router.post(f"/v1/sessions/{path}", json=body)


def main() -> None:
    """Soak, print, and write the figures if asked."""
    options = options_of(
        __doc__,
        "soak_outside",
        sessions=(2000, "that are judged; twice as many come before them"),
        seed=(0, "of who abandons what"),
    ).parse_args()
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = PRIMITIVES
    findings = Findings()
    demo = DemoOptions(seed=0, port=free_port(), steps=None)
    with tempfile.TemporaryDirectory(prefix="soak-outside-") as folder:
        arguments = {**SMALL, "router": SMALL["router"] | {"sessions_dir": f"{folder}/sessions"}}
        with deployed(demo, Console(), **arguments) as cluster:
            agents = Agents(demo.url, findings, options.seed)
            census = Census(cluster_processes, RULES)
            began = time.monotonic()
            config = run_config(options, Path(folder))
            status = asyncio.run(soak(demo.url, config, agents, census))
            seconds = time.monotonic() - began
            figures = figures_of(status, agents, metrics_of(str(cluster.metrics_url), agents))
            left = [one.name for one in Path(folder, "sessions").glob(f"*{SESSION_PREFIX}*")]
    judge(status, figures, left, findings)
    rows = [(name, str(value)) for name, value in figures.items()]
    conclude(options, seconds, census, findings.problems, figures, rows)


def run_config(options: argparse.Namespace, folder: Path) -> RunConfig:
    """The demo's run, whose episodes agents outside play."""
    config = read_run_file(ROOT / "examples" / "tiny_code" / "run.yaml", seed=None, steps=None)
    changes = {
        "run_root": str(folder / "runs"),
        "environment": "external",
        "batch_groups": GROUPS,
        "group_size": GROUP_SIZE,
        "steps": -(-(WARM_UP + 1) * options.sessions // (GROUPS * GROUP_SIZE)),
        "rollout_progress_timeout_s": PROGRESS_S,
        "rollout_timeout_s": None,
        "evaluation": {"tasks": 20, "every": 100},
    }
    return RunConfig.model_validate(config.model_dump() | changes)


async def soak(url: str, config: RunConfig, agents: Agents, census: Census) -> RunStatus:
    """The run from its start to its end."""
    over = asyncio.Event()
    playing = asyncio.create_task(agents.play(over))
    with RunsClient(url) as client:
        run_id = (await asyncio.to_thread(client.start, config)).run_id
        deadline, count_at = time.monotonic() + LONGEST_S, 0.0
        while True:
            status = await asyncio.to_thread(client.status, run_id)
            if status.state in ENDED or time.monotonic() > deadline or playing.done():
                break
            if time.monotonic() >= count_at:
                census.take(agents.ended.total())
                count_at = time.monotonic() + COUNT_S
            await asyncio.sleep(0.5)
    over.set()
    await playing
    return status


def metrics_of(url: str, agents: Agents) -> str:
    """What Prometheus would read when the newest counts have come there, which takes seconds."""
    expected = sum(agents.ended[way] for way in UNTAKEN)
    deadline = time.monotonic() + EXPORT_S
    while True:
        text = httpx.get(url, timeout=60).text
        refused = counted(text, "router_rewards_refused", "reason")
        if sum(refused.values()) >= expected or time.monotonic() > deadline:
            return text
        time.sleep(1.0)


def counted(metrics: str, name: str, label: str) -> dict[str, int]:
    """A counter by one of its labels, as Prometheus would read it."""
    found: Counter[str] = Counter()
    for line in metrics.splitlines():
        if line.startswith(f"ray_millrace_{name}_total{{"):
            value = line.split(f'{label}="')[1].split('"')[0]
            found[value] += int(float(line.rsplit(" ", 1)[1]))
    return dict(found)


def figures_of(status: RunStatus, agents: Agents, metrics: str) -> dict[str, Any]:
    """What the record holds."""
    summary = status.summary
    return {
        "state": status.state,
        "steps": status.step,
        "sessions": agents.ended.total(),
        "by_agents": dict(agents.ended),
        "episodes": counted(metrics, "run_episodes", "outcome"),
        "rewards_refused": counted(metrics, "router_rewards_refused", "reason"),
        "ledger": status.ledger.model_dump(),
        "failures": status.failures,
        "heldout": [
            summary and summary.heldout_pass_rate_before,
            summary and summary.heldout_pass_rate_after,
        ],
    }


def judge(status: RunStatus, figures: dict[str, Any], left: list[str], findings: Findings) -> None:
    """Everything that was handed out is accounted for."""
    if status.state is not RunState.FINISHED:
        findings.wrong("run", f"{status.state}: {status.detail}")
    ledger = status.ledger
    closed = ledger.trained + ledger.filtered + ledger.expired + ledger.failed
    if ledger.admitted != closed + ledger.in_flight or ledger.in_flight:
        findings.wrong("ledger", f"{ledger}")
    by_agents, episodes = figures["by_agents"], figures["episodes"]
    ended = Counter[str]()
    for way, count in by_agents.items():
        ended[OUTCOMES.get(way, "agent_abandoned")] += count
    if dict(ended) != episodes:
        findings.wrong("episodes", f"{by_agents} by the agents, {episodes} by the run")
    refused = {reason: by_agents.get(way, 0) for way, reason in UNTAKEN.items()}
    if refused != figures["rewards_refused"]:
        findings.wrong("rewards", f"{refused} by the agents, {figures['rewards_refused']} refused")
    if left:
        findings.wrong("files", f"{len(left)} sessions are left in sessions_dir")


if __name__ == "__main__":
    main()
