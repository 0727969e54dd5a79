"""The demo's own decisions; the demo as a whole is run by `make demo`."""

import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from services.cli import demo
from services.cli.demo import DemoOptions, resolved
from services.cli.deployment import Deployment
from services.cli.run_view import RunView
from services.protocol.strict import load_yaml
from tests.cli.conftest import Orchestra


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
    assert content["http_options"]["port"] == 8123


def test_the_resolved_deployment_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"head_dim": 32, "num_hidden_layers": 2}')
    (tmp_path / "tokenizer.json").write_text("{}")
    content = resolved(load_yaml(demo.DEPLOY_FILE), DemoOptions(seed=1, port=8123, steps=None))
    for app in content["applications"]:
        if "model" in app["args"]:
            app["args"]["model"] = str(tmp_path)
    assert len(Deployment.check(content, source="deployment").names) == 7


_INTERRUPTED = """
import subprocess, sys, time
from services.cli.private_cluster import PrivateCluster
from services.cli.demo import terminated_like_interrupted
with terminated_like_interrupted(), PrivateCluster(num_cpus=1) as cluster:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(cluster.folder, child.pid, flush=True)
    while True:
        time.sleep(0.1)  # a signal that comes just before a sleep is heard after it
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_that_was_started(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", _INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder, child = process.stdout.readline().split()
        assert Path(folder).is_dir()
        os.kill(process.pid, number)
        try:
            assert process.wait(60) != 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # which prints where each thread is
            pytest.fail(f"it did not end:\n{process.communicate(timeout=30)[1]}")
    assert not Path(folder).exists()
    assert not Path(f"/proc/{child}").exists()


_INTERRUPTED_WHILE_STARTING = """
from rich.console import Console
from services.cli import private_cluster
from services.cli.deployment import Deployment
from services.cli.private_cluster import PrivateCluster

asked = []
private_cluster.shut_down_serve = lambda timeout_s: asked.append(timeout_s)

class Built:
    replicas_of = staticmethod(lambda name: 2)
    start = staticmethod(lambda: None)

def wait(deployment, console, timeout_s):
    if interrupted:
        raise KeyboardInterrupt

private_cluster.wait_until_running = wait
Deployment.check = staticmethod(lambda content, source: Built)
for interrupted in (True, False):
    try:
        with PrivateCluster(num_cpus=1) as cluster:
            cluster.deploy({}, Console(), timeout_s=1)
    except KeyboardInterrupt:
        pass
    print(interrupted, asked)
"""


def test_serve_is_not_asked_to_wait_for_replicas_that_never_ran() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_STARTING],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["True []", "False [15.0]"]


def test_an_owner_that_is_killed_is_cleaned_up_after() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder, child = process.stdout.readline().split()
        watched = os.pidfd_open(int(child))
        process.kill()
    ended, _, _ = select.select([watched], [], [], 30)
    os.close(watched)
    assert ended
    deadline = time.monotonic() + 30
    while Path(folder).exists() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not Path(folder).exists()


def test_a_terminal_sees_a_live_table(orchestra: Orchestra) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with RunView(console) as view:
        view.show(orchestra.status(step=1), [])
        view.show(orchestra.status(step=2, reward=0.75), [])
    shown = screen.getvalue()
    assert "0.75" in shown
    assert "512/s" in shown
    assert "2 leased" in shown
    assert "4 groups = 3 trained + 1 filtered" in shown
