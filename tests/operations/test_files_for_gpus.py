"""Deployment files for 2, 8 and 32 GPUs, started on the nodes that deploy/ray has for them.

The nodes declare CPUs, GPUs and memory that they do not have (`on_declared_gpus.py`). What files
for more GPUs ask for is held to their nodes without a start (tests/deploy/test_ray_up_files.py):
64 ranks and 48 engines are more processes than a small machine holds.
"""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.yaml_text import load_yaml
from tests.deploy.ray_up_tables import declared
from tests.operations.network import Network, wait_for, why_not
from tests.operations.on_declared_gpus import on_cpus
from tests.operations.several_nodes import FRONT, PORT, RAY_PORT, ROOT, RayNodes

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(1800),
]
URL = f"http://127.0.0.1:{PORT}"
RUN_S, TABLE_S = 300.0, 120.0
A_CORE_S_MEMORY = 9e9
"""Bytes of the nodes with GPUs: 1,872 GB for 208 cores."""
MOST_ENGINES = 1
"""That are real: each takes a gigabyte."""


class GpuNodes(RayNodes):
    """Nodes that declare GPUs; the services are reached from the head, as the files have it."""

    @property
    def url(self) -> str:
        """Of the router."""
        return URL


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny_code"
    make = ["-m", "examples.tiny_code.make_model", "--seed", "0", "--out", str(folder)]
    subprocess.run([sys.executable, *make], cwd=ROOT, check=True, timeout=600)
    return folder


@contextmanager
def nodes_for(file: str, model: Path, logs: Path) -> Iterator[GpuNodes]:
    """Google Cloud's nodes for the file: it has machines of two GPUs."""
    head, *workers = (
        one | {"memory": one["CPU"] * A_CORE_S_MEMORY} for one in declared("gcp", file)
    )
    resources = {"head": head | {FRONT: 1}} | {f"node{n}": one for n, one in enumerate(workers)}
    with Network(list(resources)) as network:
        nodes = GpuNodes(network, resources, logs)
        # A worker for each declared CPU would start with the first driver.
        nodes.set_environment(RAY_prestart_worker_first_driver="0")
        with nodes:
            for machine in network.machines.values():
                shutil.copytree(model, machine.path(network.disk / "model"))
            tasks = ROOT / "examples" / "tiny_code" / "tasks.jsonl"
            shutil.copy(tasks, nodes.of("head", "tasks.jsonl"))
            yield nodes


@pytest.mark.parametrize(
    "file",
    [
        "deploy/sizes/2-gpus-8b.yaml",
        "deploy/sizes/2-gpus-8b-lora.yaml",
        "deploy/cluster.yaml",
        "deploy/sizes/8-gpus-14b.yaml",
        "deploy/sizes/2-nodes-30b-a3b.yaml",
        "deploy/cluster-4-nodes.yaml",
    ],
)
def test_the_file_starts_where_its_gpus_are(file: str, model: Path, tmp_path: Path) -> None:
    original = load_yaml(ROOT / file)
    args = {one["name"]: one["args"] for one in original["applications"]}
    engines = args["rollout_server"]["replicas"]
    real = engines <= MOST_ENGINES
    with nodes_for(file, model, tmp_path) as nodes:
        head, began = nodes.machine("head"), time.monotonic()
        address = f"{head.address}:{RAY_PORT}"
        said = nodes.run(head, "millrace", "check", str(ROOT / file), "--cluster", address)
        assert "is good" in said
        nodes.deploy(on_cpus(load_yaml(ROOT / file), f"{nodes.disk}/model", engines=real), engines)
        print(f"{file}: {engines} leases after {time.monotonic() - began:.0f} s")
        check_places(nodes, args)
        with head.network(), httpx.Client(base_url=URL, trust_env=False, timeout=60) as http:
            check_routes(http, args["rollout_server"]["served_model_name"])
        doctor = nodes.run(head, "millrace", "doctor", "--cluster", "--address", address)
        assert json.loads(doctor)["healthy"]
        if real:
            check_training(nodes, args["rollout_server"]["served_model_name"])


def check_places(nodes: GpuNodes, args: dict[str, Any]) -> None:
    """Ranks and engines hold all GPUs that the file counts on, on nodes of their purpose."""
    head = nodes.machine("head")
    left = [sys.executable, "-m", "tests.operations.resources_left", f"{head.address}:{RAY_PORT}"]
    found = json.loads(nodes.run(head, *left).splitlines()[-1])
    taken: Counter[str] = Counter()
    for node in found.values():
        used = node["all"].get("GPU", 0) - node["free"].get("GPU", 0)
        (purpose,) = {"trainer", "rollout", "reward", "head"} & node["all"].keys() or {"all"}
        taken[purpose] += used
    trainer, rollout = args["trainer"], args["rollout_server"]
    ranks = trainer["world_size"] * trainer["gpus_per_rank"]
    engines = rollout["replicas"] * rollout["tensor_parallel_size"]
    if "node_resource" in trainer:
        assert (taken["trainer"], taken["rollout"]) == (ranks, engines)
        assert taken["reward"] == taken["head"] == 0
    else:
        assert taken.total() == ranks + engines
    wait_for(lambda: len(nodes.members()) == rollout["replicas"], "all members", TABLE_S)
    # Each node has as many engines as it has GPUs for.
    members = Counter(httpx.URL(member["address"]).host for member in nodes.members())
    assert len(set(members.values())) == 1, members


def check_routes(http: httpx.Client, model: str) -> None:
    """Clients find the services where the guides say, all at one port."""
    assert [one["id"] for one in http.get("/v1/models").json()["data"]] == [model]
    assert http.get("/v1/runs").json() is not None
    assert http.get("/page", follow_redirects=True).status_code == 200


def check_training(nodes: GpuNodes, model: str) -> None:
    """Two train steps with real engines."""
    config = read_run_file(ROOT / "examples" / "tiny_code" / "run.yaml", seed=None, steps=2)
    changes: dict[str, Any] = {"model": model, "evaluation": {"tasks": 16}}
    changes |= {"task_file": f"{nodes.disk}/tasks.jsonl", "run_root": f"{nodes.disk}/runs"}
    with nodes.client() as client:
        run = client.start(RunConfig.model_validate(config.model_dump() | changes)).run_id
        over = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
        wait_for(lambda: client.status(run).state in over, "the run's end", RUN_S)
        status = client.status(run)
    assert (status.state, status.step) == (RunState.FINISHED, 2), status.detail
