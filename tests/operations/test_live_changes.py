"""A cluster is changed while a run goes on: what did not change is not restarted, nothing is lost.

The changes are those of docs/operating.md, made as `serve deploy` of the changed file makes them.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import serve
from rich.console import Console

from millrace_tools.capacity.machine import free_port
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import move_to
from millrace_tools.main import main
from services.protocol.errors import NotReady
from services.protocol.reward.grader import ExactGrader
from services.protocol.reward.reward_service import ScoreJob
from services.protocol.yaml_text import load_yaml
from tests.cluster.conftest import MODEL_NAME, READY_S, ROOT, Cluster, model_dir
from tests.operations.live_cluster import (
    ENDED,
    LiveCluster,
    assert_nothing_was_lost,
    dashboard,
)

__all__ = ["model_dir"]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def live(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    content = load_yaml(ROOT / "deploy" / "laptop.yaml")
    move_to(content, port)
    args = {application["name"]: application["args"] for application in content["applications"]}
    args["trainer"] |= {"model": str(model_dir), "world_size": 1, "ranks_per_node": 1}
    args["rollout_server"] |= {"model": str(model_dir), "replicas": 1}
    folder = tmp_path_factory.mktemp("live")
    # Ray puts the folder it is started from first on every worker's path, before PYTHONPATH.
    with contextlib.chdir(folder), PrivateCluster(num_cpus=4) as cluster:
        cluster.start()
        quiet = Console(quiet=True)
        replicas = cluster.deploy(content, quiet, timeout_s=READY_S, changing=True)
        wait_until_leased(url, replicas, timeout_s=READY_S)
        seen = Cluster(
            url=url,
            metrics_url=cluster.metrics_url,
            model_dir=model_dir,
            folder=folder,
            content=content,
            private=cluster,
        )
        yield LiveCluster(seen, content)


@pytest.fixture(scope="module")
def initial(live: LiveCluster) -> list[float]:
    """Logprobs of a fixed text under the model as it was before any run."""
    return _logprobs(live)


@pytest.fixture(scope="module")
def run_id(live: LiveCluster, initial: list[float]) -> Iterator[str]:
    """A run that goes on through all the changes."""
    assert initial
    config = _config(live)
    run_id = live.start(config)
    live.goes_on(run_id, steps=1)
    yield run_id
    assert_nothing_was_lost(live.runs.control(run_id, "stop"))


def _config(live: LiveCluster) -> Any:
    schedule = {"preset": "async", "max_staleness": 2}
    endless = {"steps": 100_000, "evaluation": {"tasks": 1, "every": 100_000}}
    return live.cluster.run_config(schedule=schedule, checkpoint={"every": 10}, **endless)


def _logprobs(live: LiveCluster) -> list[float]:
    answer = live.cluster.openai.completions.create(
        model=MODEL_NAME,
        prompt="def add(a, b):",
        max_tokens=8,
        temperature=0.0,
        logprobs=0,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    return [float(value) for value in logprobs.token_logprobs or () if value is not None]


def _others(live: LiveCluster, *changed: str) -> dict[str, set[int]]:
    return {name: ids for name, ids in live.processes().items() if name not in changed}


def test_rollout_servers_are_added_and_taken_away(live: LiveCluster, run_id: str) -> None:
    before = live.processes()
    _scale(live, 2)
    assert_nothing_was_lost(live.goes_on(run_id))
    assert before["rollout_server"] < live.processes()["rollout_server"]
    _scale(live, 1)
    first = before["rollout_server"]
    live.wait(lambda: live.processes()["rollout_server"] == first, "the newer one to be gone")
    assert_nothing_was_lost(live.goes_on(run_id))
    assert live.processes() == before


def _scale(live: LiveCluster, replicas: int) -> None:
    number = [{"name": "rollout_server", "num_replicas": replicas}]
    live.deploy("rollout_server", deployments=number)
    live.wait(lambda: len(live.cluster.table().leased) == replicas, f"{replicas} leases")


def _others_of(processes: dict[str, set[int]], *changed: str) -> dict[str, set[int]]:
    return {name: ids for name, ids in processes.items() if name not in changed}


def test_the_reward_services_settings_change(live: LiveCluster, run_id: str) -> None:
    before = live.processes()
    live.deploy("reward_service", args={"cache_mb": 32})
    live.wait_until_running("reward_service", without=before["reward_service"])
    assert_nothing_was_lost(live.goes_on(run_id))
    assert _others(live, "reward_service") == _others_of(before, "reward_service")


def test_one_services_code_changes(live: LiveCluster, run_id: str, tmp_path: Path) -> None:
    """A grader of the service itself says something else, in a copy of the package."""
    shutil.copytree(ROOT / "services", tmp_path / "services")
    grader = tmp_path / "services" / "reward_service" / "graders" / "text.py"
    source = grader.read_text()
    assert "answered {" in source
    grader.write_text(source.replace("answered {", "the newer grader read {"))
    before = live.processes()
    assert "newer grader" not in _graded()
    live.deploy("reward_service", runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})
    live.wait_until_running("reward_service", without=before["reward_service"])
    assert "newer grader" in _graded()
    assert_nothing_was_lost(live.goes_on(run_id))
    assert _others(live, "reward_service") == _others_of(before, "reward_service")


def _graded() -> str:
    job = ScoreJob(job_id="1", completion="4", grader=ExactGrader(kind="exact", expected="5"))
    handle = serve.get_app_handle("reward_service")
    (score,) = handle.score.remote([job]).result(timeout_s=60)
    return str(score.detail)


def test_the_routers_settings_change(live: LiveCluster, run_id: str) -> None:
    before = live.processes()
    live.deploy("router", args={"spill_threshold": 16})
    live.wait_until_running("router", without=before["router"])
    assert_nothing_was_lost(live.goes_on(run_id))
    assert _others(live, "router") == _others_of(before, "router")


def test_the_orchestrators_settings_change_between_two_halves_of_a_run(
    live: LiveCluster, run_id: str
) -> None:
    step = live.runs.control(run_id, "checkpoint").step
    before = live.processes()
    live.deploy("orchestrator", args={"score_batch": 8})
    live.wait_until_running("orchestrator", without=before["orchestrator"])
    live.wait(lambda: _resumed(live, run_id), "the run to go on")
    status = live.goes_on(run_id)
    assert status.step > step
    assert_nothing_was_lost(status)
    assert _others(live, "orchestrator") == _others_of(before, "orchestrator")


def _resumed(live: LiveCluster, run_id: str) -> bool:
    try:
        if all(run.run_id != run_id for run in live.runs.runs()):
            live.start(_config(live), resume=run_id)
    except NotReady:  # the proxies have yet to hear of the new orchestrator
        return False
    return live.runs.status(run_id).state not in ENDED


def test_another_checkpoint_is_served_without_restarting_a_rollout_server(
    live: LiveCluster,
    run_id: str,
    initial: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer's model is another folder: here the untrained model's, so that it is known.

    `millrace wait` returns when it is served, although every service answers all the time.
    """
    assert_nothing_was_lost(live.runs.control(run_id, "stop"))
    assert not _near(_logprobs(live), initial), "the run has taught it nothing"
    shutil.copytree(live.cluster.model_dir, tmp_path / "model")
    before, version = live.processes(), live.cluster.table().newest_version
    assert version is not None
    with dashboard() as address:
        monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", address)
        live.deploy("trainer", args={"model": str(tmp_path / "model")})
        assert main(["wait", "--url", live.cluster.url]) == 0
    assert _served(live) > version
    assert _near(_logprobs(live), initial)
    assert _others(live, "trainer", "ranks") == _others_of(before, "trainer", "ranks")


def _served(live: LiveCluster) -> int:
    leased = live.cluster.table().leased
    return min((member.committed_version or 0 for member in leased), default=0)


def _near(one: list[float], other: list[float]) -> bool:
    return all(abs(a - b) < TOLERANCE for a, b in zip(one, other, strict=True))
