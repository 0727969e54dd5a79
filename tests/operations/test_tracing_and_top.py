"""One trajectory's trace through six real services, and what `millrace top` shows of them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import move_to
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.yaml_text import load_yaml
from tests.observability.collector import Collector, receiving

ROOT = Path(__file__).parents[2]
READY_S = 300.0
ENDED = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
BELOW = {
    "rollout": "group",
    "request": "rollout",
    "choose": "request",
    "generate": "request",
    "render": "generate",
    "llm_request": "generate",
    "score": "group",
    "grade": "score",
    "queue": "grade",
    "test": "grade",
    "batch": "group",
    "train": "group",
    "train_step": "train",
    "ranks": "train_step",
    "forward_backward": "ranks",
    "optimizer": "ranks",
    "snapshot": "ranks",
    "publish": "train_step",
    "stage": "publish",
    "commit": "publish",
    "push": "group",
}
SERVICES = {"orchestrator", "router", "rollout_server", "reward_service", "trainer", "weight_bus"}


@dataclass(frozen=True, kw_only=True)
class Traced:
    url: str
    address: str
    folder: Path
    collector: Collector

    def run(self) -> RunConfig:
        config = read_run_file(ROOT / "examples" / "tiny_code" / "run.yaml")
        small = {
            "run_root": str(self.folder / "runs"),
            "steps": 2,
            "batch_groups": 2,
            "group_size": 2,
            "algorithm": {"advantage": "reinforce_plus_plus"},
            "evaluation": {"tasks": 2},
        }
        return RunConfig.model_validate(config.model_dump() | small)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    make = [sys.executable, "-m", "examples.tiny_code.make_model", "--seed", "0", "--out"]
    subprocess.run([*make, str(folder / "model")], cwd=ROOT, check=True, timeout=180)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    content = load_yaml(ROOT / "deploy" / "laptop.yaml")
    move_to(content, port)
    before = dict(os.environ)
    with receiving(folder) as collector, PrivateCluster(num_cpus=2) as cluster:
        args = {one["name"]: one["args"] for one in content["applications"]}
        for name in SERVICES:
            args[name]["tracing"] = {"endpoint": collector.endpoint}
        args["trainer"] |= {"model": str(folder / "model"), "world_size": 1}
        args["rollout_server"] |= {"model": str(folder / "model"), "replicas": 1}
        cluster.start()
        replicas = cluster.deploy(content, Console(quiet=True), timeout_s=READY_S)
        wait_until_leased(url, replicas, timeout_s=READY_S)
        address = ray.get_runtime_context().gcs_address
        yield Traced(url=url, address=address, folder=folder, collector=collector)
    os.environ.clear()
    os.environ.update(before)


def whole_trace(collector: Collector) -> dict[str, list[dict[str, Any]]]:
    """Spans by name of a trace that has all of them; exporters send every few seconds."""
    deadline = time.monotonic() + READY_S
    while True:
        for train in collector.spans(name="train_step"):
            found: dict[str, list[dict[str, Any]]] = {}
            for span in collector.spans(trace=train["trace"]):
                found.setdefault(span["name"], []).append(span)
            if BELOW.keys() | {"group"} <= found.keys():
                return found
        names = sorted({span["name"] for span in collector.spans()})
        assert time.monotonic() < deadline, f"no whole trace; there are {names}"
        time.sleep(0.5)


def test_one_trajectorys_spans_of_all_services_are_one_trace(traced: Traced) -> None:
    with RunsClient(traced.url) as client:
        run_id = client.start(traced.run()).run_id
        deadline = time.monotonic() + READY_S
        while (status := client.status(run_id)).state not in ENDED:
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
    assert status.state is RunState.FINISHED, status.detail
    trace = whole_trace(traced.collector)
    (group,) = trace["group"]
    assert group["parent"] == ""
    assert group["attributes"]["millrace.run"] == run_id
    assert group["attributes"]["millrace.ending"] == "trained"
    ids = {name: {span["span"] for span in spans} for name, spans in trace.items()}
    for name, parent in BELOW.items():
        for span in trace[name]:
            assert span["parent"] in ids[parent], f"{name} is not below {parent}"
    every = [span for spans in trace.values() for span in spans]
    assert {span["service"].removeprefix("millrace.") for span in every} == SERVICES
    assert all(span["began"] <= span["ended"] for span in every)
    assert len(trace["grade"]) == 2, "one for each answer of the group"
    tasks = (ROOT / "examples" / "tiny_code" / "tasks.py").read_text()
    assert "def " in tasks
    assert not any("def " in json.dumps(span["attributes"]) for span in every), "no prompt"


def test_top_shows_the_cluster_as_it_is(traced: Traced) -> None:
    command = [sys.executable, "-m", "millrace_tools.main", "top", "--once"]
    done = subprocess.run(
        [*command, "--url", traced.url, "--address", traced.address],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["absent"]
    (run,) = told["runs"]
    assert (run["state"], run["step"]) == ("finished", 2)
    (replica,) = told["replicas"]
    assert replica["leased"]
    assert replica["version"] == told["newest_version"] == told["pushes"][-1]["version"]
    assert replica["kv_usage"] is not None
    assert told["pushes"][-1]["commits"] == 1
    assert told["pushes"][-1]["took_s"] > 0
    assert told["load"]["replicas"] == 1
    assert told["rewards"]["queue"] == 0
    assert told["alarms"] == []
