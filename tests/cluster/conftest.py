"""One real cluster on CPU for all tests of this folder: Ray, Serve, engines, ranks, sandboxes."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
from openai import OpenAI
from rich.console import Console

from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import move_to
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.protocol.weights.weight_bus import BUS_ACTOR, NAMESPACE, MemberTable
from services.protocol.yaml_text import load_yaml

ROOT = Path(__file__).parents[2]
MODEL_NAME = "tiny_code"
ROUTER_KEY, ROUTER_KEY_ENV = "a-key-for-everybody", "MILLRACE_ROUTER_KEY"
"""What the services show the router, for tests in which it asks for keys."""
READY_S = 600.0
REPLICAS = 2
SANDBOXES = {
    "name": "sandboxes",
    "route_prefix": "/v1/sandboxes",
    "import_path": "services.reward_service.workspace_api.app:build",
    "args": {"replicas": 2},
}
METRICS = (
    "ray_millrace_bus_newest_version",
    "ray_millrace_bus_commits_total",
    "ray_millrace_rollout_version",
    "ray_millrace_router_sessions",
    "ray_vllm_request_success_total",
)
"""Some of every process."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The running cluster as its users and its faults see it."""

    url: str
    metrics_url: str
    model_dir: Path
    folder: Path
    content: dict[str, Any]
    private: PrivateCluster

    @property
    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120.0)

    def table(self) -> MemberTable:
        bus = ray.get_actor(BUS_ACTOR, namespace=NAMESPACE)
        table: MemberTable = ray.get(bus.watch.remote(-1, 0.0), timeout=300)  # type: ignore[assignment]
        return table

    def wait_for(self, true: Callable[[], bool], what: str, timeout_s: float = READY_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}; {self.table()}"
            time.sleep(0.1)

    def change_engines(self, replicas: int, **args: Any) -> None:
        """Deploy the file again, with so many replicas and these arguments beside its own.

        Serve starts engines for new arguments, and only ends some for fewer replicas.
        """
        content = deepcopy(self.content)
        for application in content["applications"]:
            if application["name"] == "rollout_server":
                application["args"] |= args
                application["deployments"] = [{"name": "rollout_server", "num_replicas": replicas}]
        self.private.deploy(content, Console(quiet=True), timeout_s=READY_S, changing=True)
        wanted = args.get("determinism", False)

        def replaced() -> bool:
            return [one.deterministic for one in self.table().leased] == [wanted] * replicas

        self.wait_for(replaced, f"{replicas} leased replicas, and none of before")

    def metrics(self) -> list[str]:
        """Those of `METRICS` that Prometheus would scrape now."""
        text = httpx.get(self.metrics_url, timeout=300).text
        return [name for name in METRICS if name in text]

    def wait_until_whole(self) -> None:
        self.wait_for(lambda: len(self.table().leased) == REPLICAS, "two leased replicas")

    def run_config(self, **changes: Any) -> RunConfig:
        config = read_run_file(ROOT / "examples" / "tiny_code" / "run.yaml", seed=None, steps=None)
        small = {
            "run_root": str(self.folder / "runs"),
            "steps": 4,
            "batch_groups": 4,
            "group_size": 4,
            "evaluation": {"tasks": 4},
            "checkpoint": {"every": 1},
        }
        return RunConfig.model_validate(config.model_dump() | small | changes)

    def run_to_the_end(self, config: RunConfig) -> RunStatus:
        with RunsClient(self.url) as client:
            return self.follow(client, client.start(config).run_id)

    def follow(self, client: RunsClient, run_id: str) -> RunStatus:
        ended = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
        self.wait_for(lambda: client.status(run_id).state in ended, f"the end of {run_id}")
        return client.status(run_id)

    def processes(self, title: str) -> list[psutil.Process]:
        """Processes below this test session whose command line begins with `title`."""
        found = []
        for process in psutil.Process(os.getpid()).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(title):
                    found.append(process)
        return found


@pytest.fixture(scope="session")
def model_dir() -> Path:
    folder = ROOT / "models" / "tiny_code-seed0"
    subprocess.run(
        [sys.executable, "-m", "examples.tiny_code.make_model", "--seed", "0", "--out", folder],
        cwd=ROOT,
        check=True,
        timeout=READY_S,
    )
    return folder


@pytest.fixture(scope="package")
def running_cluster(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started_cluster(model_dir, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@contextlib.contextmanager
def started_cluster(
    model_dir: Path, folder: Path, *, ready_s: float = READY_S, placement: str = "separate"
) -> Iterator[Cluster]:
    """deploy/laptop.yaml with two of each on a free port, for as long as the context lasts."""
    port = free_port()
    content = load_yaml(ROOT / "deploy" / "laptop.yaml")
    move_to(content, port)
    args = {application["name"]: application["args"] for application in content["applications"]}
    args["trainer"] |= {"model": str(model_dir), "world_size": 2, "checkpoints_kept": 100}
    engines = {"model": str(model_dir), "replicas": REPLICAS, "max_model_len": 1024}
    args["rollout_server"] |= engines
    for name in ("trainer", "rollout_server"):
        args[name]["placement"] = placement
    args["orchestrator"] |= {"environments": True, "router_key_env": ROUTER_KEY_ENV}
    args["page"] |= {"router_key_env": ROUTER_KEY_ENV}
    args["router"] |= {"sessions_dir": str(folder / "sessions")}
    content["applications"].append(SANDBOXES)
    url = f"http://127.0.0.1:{port}"
    environment = dict(os.environ)
    os.environ[ROUTER_KEY_ENV] = ROUTER_KEY
    with PrivateCluster(num_cpus=2) as cluster:
        cluster.start()
        # As `serve deploy` does: the one cluster of `make test` whose file Serve itself builds.
        quiet = Console(quiet=True)
        replicas = cluster.deploy(content, quiet, timeout_s=ready_s, changing=True)
        wait_until_leased(url, replicas, timeout_s=ready_s)
        metrics_url = cluster.metrics_url
        yield Cluster(
            url=url,
            metrics_url=metrics_url,
            model_dir=model_dir,
            folder=folder,
            content=content,
            private=cluster,
        )
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """The cluster with all its replicas back, whatever the test before did to them."""
    running_cluster.wait_until_whole()
    return running_cluster


@pytest.fixture(scope="package")
def metrics_seen(running_cluster: Cluster) -> dict[str, float]:
    """When each of `METRICS` was there for the first time that it was looked for."""
    seen: dict[str, float] = {}

    def scrape() -> bool:
        seen.update(dict.fromkeys(set(running_cluster.metrics()) - set(seen), time.monotonic()))
        return len(seen) == len(METRICS)

    running_cluster.wait_for(scrape, "all wanted metrics")
    return seen
