"""The demo's services on a private cluster, to run the example in and to break."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from rich.console import Console

from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import move_to
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunConfig, RunStatus
from services.protocol.yaml_text import load_yaml

ROOT = Path(__file__).parents[2]
READY_S = 300.0
AWAY_S = 180.0
"""Longest that nobody may answer for the run: an orchestrator that was killed comes back."""

_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class DemoCluster:
    """A running one.

    Attributes:
        url: where the services answer.
        address: of its Ray.
        folder: for what is written.
        cluster_folder: of its Ray: logs, sockets, temporary files.
    """

    url: str
    address: str
    folder: Path
    cluster_folder: Path

    def start_run(self, **changes: Any) -> RunStatus:
        """Start the example's run with these changes to its file."""
        file = ROOT / "examples" / "tiny_code" / "run.yaml"
        config = read_run_file(file, seed=None, steps=None)
        here = {"run_root": str(self.folder / "runs"), "checkpoint": {"every": 2}}
        with RunsClient(self.url) as client:
            return client.start(RunConfig.model_validate(config.model_dump() | here | changes))

    def stop(self, run_id: str) -> RunStatus:
        """Stop the run, its progress kept."""
        with RunsClient(self.url) as client:
            return client.control(run_id, "stop")

    def follow(self, run_id: str, timeout_s: float) -> RunStatus:
        """The run's last status, however often its orchestrator was away meanwhile."""
        heard = began = time.monotonic()
        with RunsClient(self.url) as client:
            while time.monotonic() - began < timeout_s:
                try:
                    status = client.status(run_id)
                    heard = time.monotonic()
                    if status.state in ENDED:
                        return status
                except (NotReady, InvalidInput):
                    assert time.monotonic() - heard < AWAY_S, "the run does not come back"
                time.sleep(_POLL_S)
        raise AssertionError(f"the run has not ended in {timeout_s:g} s: {status}")

    def chaos(self, *options: str) -> "subprocess.Popen[str]":
        """`millrace chaos` in a process of its own, as its users start it."""
        command = [sys.executable, "-m", "millrace_tools.main", "chaos", "--url", self.url]
        return subprocess.Popen(
            [*command, "--address", self.address, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextmanager
def demo_cluster(
    folder: Path,
    environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    *,
    routers: int = 1,
) -> Iterator[DemoCluster]:
    """Started on entry with a model of seed 0; nothing of it is left on exit.

    Args:
        folder: for what is written.
        environments: variables of the processes of an application, by its name.
        routers: of several, none keeps the recorded sessions itself.
    """
    model = ROOT / "models" / "tiny_code-seed0"
    make = [sys.executable, "-m", "examples.tiny_code.make_model", "--seed", "0"]
    subprocess.run(
        [*make, "--out", str(model)],
        cwd=ROOT,
        check=True,
        timeout=READY_S,
        stdout=subprocess.DEVNULL,
    )
    port = free_port()
    content, url = load_yaml(ROOT / "deploy" / "laptop.yaml"), f"http://127.0.0.1:{port}"
    move_to(content, port)
    args = {application["name"]: application["args"] for application in content["applications"]}
    args["trainer"] |= {"model": str(model), "world_size": 2, "allow_fault_injection": True}
    args["rollout_server"] |= {"model": str(model), "replicas": 2}
    args["router"] |= {"replicas": routers}
    for application in content["applications"]:
        variables = environments.get(application["name"], {})
        application["runtime_env"] = {"env_vars": dict(variables)}
    with PrivateCluster(num_cpus=max(2, os.cpu_count() or 2)) as cluster:
        cluster.start()
        replicas = cluster.deploy(content, Console(quiet=True), timeout_s=READY_S)
        wait_until_leased(url, replicas, timeout_s=READY_S)
        address = ray.get_runtime_context().gcs_address
        try:
            yield DemoCluster(
                url=url, address=address, folder=folder, cluster_folder=cluster.folder
            )
        finally:
            cluster.keep_logs(folder / "logs")
