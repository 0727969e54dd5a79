"""`ray up` with the on-premises file: three hosts, a deployment over them, a run, and its end."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from services.protocol.yaml_text import load_yaml
from tests.operations import hosts
from tests.operations.network import Network, wait_for
from tests.operations.on_premises import FILE, ROOT, OnPremises, changed, differences, three_hosts

pytestmark = pytest.mark.timeout(3600)
PAGE = ROOT / "docs" / "deploying.md"
STEPS = 30
GONE_S = 60.0


def test_what_the_test_changes_is_at_most_five_values_and_the_page_says_which() -> None:
    file = load_yaml(FILE)
    found = differences(file, changed(file, "10.0.0.8", ["10.0.0.9"]))
    assert len(found) <= 5
    assert [place for place in found if f"`{place}`" not in PAGE.read_text()] == []


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What all hosts see at /shared: the model, the tasks, the run file, the deployment file."""
    folder = tmp_path / "shared"
    make = ["-m", "examples.tiny_code.make_model", "--seed", "0", "--out", str(folder / "model")]
    subprocess.run([sys.executable, *make], cwd=ROOT, check=True, timeout=600)
    shutil.copy(ROOT / "examples" / "tiny_code" / "tasks.jsonl", folder)
    run = load_yaml(ROOT / "examples" / "tiny_code" / "run.yaml")
    run |= {"task_file": f"{hosts.SHARED}/tasks.jsonl", "run_root": f"{hosts.SHARED}/runs"}
    for name, content in (("run", run), ("cluster", three_hosts(f"{hosts.SHARED}/model"))):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


@pytest.fixture
def cluster(shared: Path) -> Iterator[OnPremises]:
    with Network(OnPremises.names()) as network:
        yield OnPremises(network, shared).prepare()


@pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
def test_three_machines_of_your_own_train_and_are_left_as_they_were(
    cluster: OnPremises, shared: Path
) -> None:
    before = cluster.left_behind()
    cluster.ray("ray up", "up --yes")
    check = "until millrace check /shared/cluster.yaml --cluster; do sleep 5; done"
    assert "is good" in cluster.on_the_head("all nodes and the check", check)
    cluster.on_the_head("serve run", "serve run --non-blocking /shared/cluster.yaml")
    cluster.on_the_head("millrace wait", "millrace wait --timeout 900")
    cluster.on_the_head("doctor", "millrace doctor --cluster")
    said = cluster.on_the_head("train", f"millrace run /shared/run.yaml --steps {STEPS}")
    assert re.search(r"\bfinished\b", said), said
    (run,) = (shared / "runs").iterdir()
    assert (run / "checkpoints" / f"step-{STEPS:08}").is_dir(), "the last step was saved"
    cluster.on_the_head("serve shutdown", "serve shutdown --yes")
    cluster.ray("ray down", "down --yes")
    cluster.stop_ray_on_workers()
    gone_s = wait_for(lambda: cluster.left_behind() == before, "an end of everything", GONE_S)
    print(f"nothing left after {gone_s:.0f} s; {cluster.seconds}")
