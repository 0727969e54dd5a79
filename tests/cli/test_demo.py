"""The demo's own decisions; the demo as a whole is run by `make demo`."""

import io
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
from rich.console import Console

from millrace_tools.demo import demo
from millrace_tools.demo.demo import DemoOptions, resolved
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.run.run_view import RunView
from services.protocol.yaml_text import load_yaml
from tests.cli.conftest import Orchestra
from tests.cli.private_cluster_owner import deploy_scripted, own_a_cluster

UP_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process with a private cluster and a child."""

    process: ForkServerProcess
    folder: Path
    child: int
    threads: Path

    def wait(self) -> None:
        """Until it has ended, and not well; else say where each of its threads is."""
        self.process.join(UP_S)
        if self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGABRT)
            self.process.join(UP_S)
            pytest.fail(f"it did not end:\n{self.threads.read_text()}")
        assert self.process.exitcode != 0


def test_the_deployment_is_resolved_to_seed_port_and_model(tmp_path: Path) -> None:
    options = DemoOptions(seed=7, port=8123, steps=None)
    before = load_yaml(demo.DEPLOY_FILE)
    content = resolved(before, options)
    assert before == load_yaml(demo.DEPLOY_FILE), "the file's content is left alone"
    arguments = {app["name"]: app["args"] for app in content["applications"]}
    assert arguments["trainer"]["model"] == arguments["rollout_server"]["model"]
    assert Path(arguments["trainer"]["model"]).is_absolute()
    assert arguments["trainer"]["model"].endswith("tiny_code-seed7")
    assert arguments["trainer"]["seed"] == arguments["rollout_server"]["seed"] == 7
    assert arguments["orchestrator"]["router_url"] == "http://127.0.0.1:8123"
    assert arguments["router"]["listen"]["port"] == 8123
    assert content["http_options"]["port"] != 8123


def test_the_resolved_deployment_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"head_dim": 32, "num_hidden_layers": 2}')
    (tmp_path / "tokenizer.json").write_text("{}")
    content = resolved(load_yaml(demo.DEPLOY_FILE), DemoOptions(seed=1, port=8123, steps=None))
    for app in content["applications"]:
        if "model" in app["args"]:
            app["args"]["model"] = str(tmp_path)
    assert len(Deployment.check(content, source="deployment").names) == 7


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    """Of a process that has imported what a private cluster needs, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cli.private_cluster_owner"])
    return context


@pytest.fixture
def owner(forks: ForkServerContext, tmp_path: Path) -> Iterator[Owner]:
    """Of a private cluster and a child; the cluster's folder and the child are known."""
    ours, its = forks.Pipe()
    threads = tmp_path / "threads"
    process = forks.Process(target=own_a_cluster, args=(its, threads))
    process.start()
    its.close()
    assert ours.poll(UP_S)
    folder, child = ours.recv()
    yield Owner(process=process, folder=Path(folder), child=child, threads=threads)
    process.kill()
    process.join(UP_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_that_was_started(owner: Owner, number: signal.Signals) -> None:
    assert owner.folder.is_dir()
    assert owner.process.pid is not None
    os.kill(owner.process.pid, number)
    owner.wait()
    assert not owner.folder.exists()
    assert not Path(f"/proc/{owner.child}").exists()


@pytest.mark.parametrize(("interrupted", "asked"), [(True, []), (False, [15.0])])
def test_serve_is_not_asked_to_wait_for_replicas_that_never_ran(
    forks: ForkServerContext, interrupted: bool, asked: list[float]
) -> None:
    ours, its = forks.Pipe()
    process = forks.Process(target=deploy_scripted, args=(its, interrupted))
    process.start()
    its.close()
    assert ours.poll(UP_S)
    assert ours.recv() == asked
    process.join(UP_S)
    assert process.exitcode == 0


def test_an_owner_that_is_killed_is_cleaned_up_after(owner: Owner) -> None:
    watched = os.pidfd_open(owner.child)
    owner.process.kill()
    ended, _, _ = select.select([watched], [], [], 300)
    os.close(watched)
    assert ended
    deadline = time.monotonic() + 300
    while owner.folder.exists() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not owner.folder.exists()


def test_a_terminal_sees_a_live_table(orchestra: Orchestra) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with RunView(console) as view:
        view.show(orchestra.status(step=1), [])
        view.show(orchestra.status(step=2, reward=0.75), [])
    shown = screen.getvalue()
    assert "0.75" in shown
    assert "512/s" in shown
    assert "2 leased" in shown
    assert "4 groups = 3 trained + 1 filtered" in shown
