"""Three nodes with a network and a disk of their own each, and what happens when one is cut off."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.protocol.yaml_text import load_yaml
from tests.operations.network import Machine, Network, wait_for, why_not
from tests.operations.several_nodes import KEYS, PORT, ROOT, ROUTER_KEY, SETTLE_S, RayNodes

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(1500),
]

MODEL = "tiny_code-seed0"
REPLICAS = 2
MOST_LAG = 2  # versions: one step off, and one under way
RUN_S, UNLEASED_S, BACK_S = 300.0, 60.0, 300.0
RESOURCES = {
    "head": {"CPU": 5, "back": 1},  # the only one with room for the trainer's ranks
    "left": {"CPU": 1, "rollout": 1, "front": 1},
    "right": {"CPU": 1, "rollout": 1},
}


@pytest.fixture(scope="module")
def model() -> Path:
    folder = ROOT / "models" / MODEL
    make = ["-m", "examples.tiny_code.make_model", "--seed", "0", "--out", str(folder)]
    subprocess.run([sys.executable, *make], cwd=ROOT, check=True, timeout=180)
    return folder


@pytest.fixture(scope="module")
def nodes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    logs = tmp_path_factory.mktemp("logs")
    with Network(list(RESOURCES)) as network, RayNodes(network, RESOURCES, logs) as nodes:
        for machine in network.machines.values():
            shutil.copytree(model, machine.path(network.disk / MODEL))
        shutil.copy(
            ROOT / "examples" / "tiny_code" / "tasks.jsonl", nodes.of("left", "tasks.jsonl")
        )
        nodes.deploy(three_nodes(f"{network.disk}/{MODEL}"), REPLICAS)
        yield nodes


def three_nodes(model: str) -> dict[str, Any]:
    """`deploy/laptop.yaml` over three machines: ranks on one, a replica on each of the others."""
    content = load_yaml(ROOT / "deploy" / "laptop.yaml")
    content |= {"proxy_location": "EveryNode"}
    applications = {application["name"]: application for application in content["applications"]}
    args = {name: application["args"] for name, application in applications.items()}
    args["trainer"] |= {"model": model, "world_size": 2, "rank_num_cpus": 2}
    args["rollout_server"] |= {"model": model, "replicas": REPLICAS}
    listen = {"host": "0.0.0.0", "port": PORT}
    args["router"] |= {"access": {"api_keys_env": KEYS}, "listen": listen}
    for name in ("orchestrator", "page"):
        args[name] |= {"access": {"api_keys_env": KEYS}, "router_key_env": ROUTER_KEY}
    places = {
        "weight_bus": {"back": 0.1},
        "trainer": {"back": 0.1},
        "rollout_server": {"rollout": 1},
        "reward_service": {"front": 0.1},
        "router": {"front": 0.1},
        "orchestrator": {"front": 0.1},
        "page": {"front": 0.1},
    }
    for name, resources in places.items():
        options = {"num_cpus": 0.1, "resources": resources}
        applications[name]["deployments"] = [{"name": name, "ray_actor_options": options}]
    return content


def a_run(nodes: RayNodes, **changes: Any) -> RunConfig:
    config = read_run_file(ROOT / "examples" / "tiny_code" / "run.yaml", seed=None, steps=None)
    small = {
        "task_file": f"{nodes.disk}/tasks.jsonl",
        "run_root": f"{nodes.disk}/runs",
        "evaluation": {"tasks": 16},
    }
    return RunConfig.model_validate(config.model_dump() | small | changes)


def test_the_demo_learns_over_three_nodes(nodes: RayNodes, model: Path) -> None:
    sides = [nodes.machine("left"), nodes.machine("right")]
    before = [side.received for side in sides]
    with nodes.client() as client:
        status = ended(client, client.start(a_run(nodes, steps=4)).run_id)
    assert status.state is RunState.FINISHED, status.detail
    check_nothing_is_lost(status)
    assert status.step == 4
    assert status.summary is not None
    assert status.summary.weight_pushes >= REPLICAS * status.step
    # The replicas share neither memory nor a disk with the ranks: all weights came by cable.
    members = nodes.members()
    assert [len(members_at(side, members)) for side in sides] == [1, 1]
    assert {member["committed_version"] for member in members} == {status.policy_version}
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    for side, earlier in zip(sides, before, strict=True):
        assert side.received - earlier > status.step * weights * 0.9
    # What belongs to the run lies with the orchestrator, its checkpoints with the ranks.
    run = Path(status.run_dir).relative_to(nodes.disk)
    assert nodes.of("left", str(run / "ledger.sqlite")).exists()
    assert any(nodes.of("head", str(run / "checkpoints")).iterdir())


def test_a_node_that_is_cut_off_costs_nothing_and_is_caught_up_before_it_serves(
    nodes: RayNodes,
) -> None:
    right = nodes.machine("right")

    def leased() -> bool:
        return any(member["leased"] for member in members_at(right, nodes.members()))

    with nodes.client() as client, nodes.agent("tiny_code") as agent:
        run = client.start(a_run(nodes, steps=500)).run_id
        wait_for(lambda: client.status(run).step >= 2, "two train steps", RUN_S)
        (cut,) = members_at(right, nodes.members())
        right.cut()
        cut_at = time.monotonic()
        unleased_s = wait_for(lambda: not leased(), "an end of its lease", UNLEASED_S)
        unleased_at, step = time.monotonic(), client.status(run).step
        wait_for(lambda: client.status(run).step >= step + 2, "steps without it", RUN_S)
        wait_for(
            lambda: any(call.began > unleased_at for call in agent.calls), "calls without it", RUN_S
        )
        right.heal()
        healed_at = time.monotonic()
        how = nodes.back(right, leased, BACK_S)
        back_at, calls = time.monotonic(), len(agent.calls)
        wait_for(lambda: len(agent.calls) >= calls + 10, "calls after it", RUN_S)
        status = client.control(run, "stop")
    print(f"unleased after {unleased_s:.1f} s, back {how} after {back_at - healed_at:.1f} s")
    check_nothing_is_lost(status)
    assert [call.problem for call in agent.calls if call.problem] == []
    between = [c for c in agent.calls if c.began > unleased_at and c.ended < healed_at]
    assert between, "there were calls while it was cut off"
    assert cut["replica_id"] not in {call.replica for call in between}
    check_leases_were_deserved([table for table in nodes.tables() if table["at"] > cut_at])


def test_a_raylet_alone_stands_still_and_dies_and_nothing_is_lost(nodes: RayNodes) -> None:
    left, right = nodes.machine("left"), nodes.machine("right")
    faults = [
        {"at": 1, "fault": "freeze", "target": "raylet", "node": right.address, "for": 5},
        {"at": 15, "fault": "kill", "target": "raylet", "node": right.address},
    ]
    # Ray may have given the node up after it was healed, in the test before.
    nodes.back(
        right, lambda: any(one["leased"] for one in members_at(right, nodes.members())), BACK_S
    )
    with nodes.client() as client:
        run = client.start(a_run(nodes, steps=500)).run_id
        wait_for(lambda: client.status(run).step >= 2, "two train steps", RUN_S)
        chaos = nodes.chaos(left, run, faults)
        how = nodes.back(right, lambda: chaos.process.poll() is not None, 2 * SETTLE_S)
        said = chaos.said()
        status = client.control(run, "stop")
    print(said)
    assert chaos.process.returncode == 0, said
    drawn = json.loads(chaos.report.read_text())
    assert drawn["lost"] == []
    assert [one["refused"] for one in drawn["recoveries"]] == ["", ""]
    assert how == "as a new node", "Ray does not start a raylet again: its supervisor does"
    check_nothing_is_lost(status)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_node_that_is_cut_off_is_healed_when_chaos_ends(
    nodes: RayNodes, number: signal.Signals
) -> None:
    left, right = nodes.machine("left"), nodes.machine("right")

    def is_cut() -> bool:
        return "millrace-chaos" in nodes.run(right, "iptables", "-S")

    def leased() -> bool:
        return any(member["leased"] for member in members_at(right, nodes.members()))

    cut = {"at": 0, "fault": "cut", "target": "node", "node": right.address, "for": 3600}
    with nodes.client() as client:
        run = client.start(a_run(nodes, steps=500)).run_id
        wait_for(lambda: client.status(run).step >= 1, "a train step", RUN_S)
        chaos = nodes.chaos(left, run, [cut])

        def struck() -> bool:
            assert chaos.process.poll() is None, chaos.said()
            return is_cut()

        wait_for(struck, "a cut", RUN_S)
        chaos.signal(number)
        healed_s = wait_for(lambda: not is_cut(), "its end", UNLEASED_S)
        said = chaos.said()
        how = nodes.back(right, leased, BACK_S)
        status = client.control(run, "stop")
    print(f"healed {healed_s:.1f} s after {number.name}, back {how}\n{said}")
    assert chaos.report.exists() == (number is signal.SIGINT)
    check_nothing_is_lost(status)


def check_nothing_is_lost(status: RunStatus) -> None:
    """The ledger balances, and no group ended but by being trained, filtered or kept for later."""
    ledger = status.ledger
    closed = ledger.trained + ledger.filtered + ledger.expired + ledger.failed
    assert ledger.admitted == closed + ledger.in_flight
    assert ledger.failed == 0


def check_leases_were_deserved(tables: list[dict[str, Any]]) -> None:
    """No replica ever had a lease on a version further behind the newest than a run allows."""
    for table in tables:
        versions = [member["committed_version"] or 0 for member in table["members"]]
        for member in table["members"]:
            if member["leased"]:
                assert max(versions) - member["committed_version"] <= MOST_LAG, table


def members_at(machine: Machine, members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that live on this machine."""
    return [member for member in members if f"//{machine.address}:" in member["address"]]


def ended(client: RunsClient, run_id: str) -> RunStatus:
    over = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
    wait_for(lambda: client.status(run_id).state in over, f"the end of {run_id}", RUN_S)
    return client.status(run_id)
