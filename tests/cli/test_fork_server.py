"""Workers of a private cluster are forked from a process that has imported their modules."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millrace_tools.cluster import forked_worker
from millrace_tools.cluster.fork_server import before_imports
from millrace_tools.cluster.forked_worker import JOB, NO_JOB, asked
from millrace_tools.cluster.ray_patches import ray_parameters
from services.warm_workers import STAGE_VARIABLE, STAGES_VARIABLE, Stage, warmed

SCRIPT = forked_worker.__file__

# Two actors alive at once, so that they are two processes; each says who forked it, and draws.
_CLUSTER = """
import json, os, sys
from pathlib import Path
import ray
from millrace_tools.cluster.fork_server import ForkServers
from millrace_tools.cluster.ray_patches import ray_parameters
from services.warm_workers import Stage

folder = Path(sys.argv[1])
forks = ForkServers(folder / "forks", {}, stages=(Stage.WORKER,))
os.environ.update(forks.start(), RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
with ray_parameters(**forks.parameters):
    ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=str(folder))

class Worker:
    def who(self):
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        group, serve = os.getpgid(0) == os.getpid(), "ray.serve._private.replica" in sys.modules
        return parent, group, serve, ray.ObjectRef.from_random().hex()

workers = [ray.remote(Worker).remote() for _ in range(3)]
print(json.dumps(ray.get([worker.who.remote() for worker in workers], timeout=300)))
ray.shutdown()
forks.stop()
"""


def test_workers_are_copies_of_one_process_that_draw_different_ids() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # paths of sockets are short
        command = [sys.executable, "-c", _CLUSTER, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    workers = json.loads(done.stdout.splitlines()[-1])
    assert len({drawn for *_, drawn in workers}) == len(workers)
    for parent, leads_its_group, has_serve, _ in workers:
        assert "millrace_tools.cluster.fork_server" in parent
        assert leads_its_group
        assert has_serve


_DRAWING = """
from contextlib import nullcontext
import sys
import ray
from millrace_tools.cluster.ray_patches import fork_safe_imports, refuse_shared_randomness
with fork_safe_imports() if sys.argv[1] == "safe" else nullcontext():
    ray.remote(type("Actor", (), {}))
refuse_shared_randomness()
"""


@pytest.mark.parametrize(("how", "refused"), [("safe", False), ("plain", True)])
def test_a_process_that_has_drawn_an_id_is_not_copied(how: str, refused: bool) -> None:
    command = [sys.executable, "-c", _DRAWING, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ("has drawn from Ray's generator" in done.stderr) is refused, done.stderr
    assert (done.returncode != 0) is refused


def _set_up(**context: object) -> list[str]:
    shown = f"--serialized-runtime-env-context={json.dumps(context)}"
    return [SCRIPT, "--worker-id=7", "--language=PYTHON", shown]


@pytest.mark.parametrize("job", [JOB, NO_JOB])
def test_a_worker_is_asked_for_with_its_own_arguments(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", job)
    assert asked([SCRIPT, "--worker-id=7", "--language=PYTHON"], SCRIPT) == (
        "worker",
        ["--worker-id=7"],
    )
    warm = _set_up(env_vars={STAGE_VARIABLE: "engine"}, py_executable=sys.executable)
    assert asked(warm, SCRIPT) == ("engine", ["--worker-id=7"])


@pytest.mark.parametrize(
    "context",
    [
        {"env_vars": {"OMP_NUM_THREADS": "3"}},
        {"command_prefix": ["nice"]},
        {"py_executable": "/another/python"},
    ],
)
def test_a_worker_with_an_environment_of_its_own_is_rays_to_start(
    context: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", JOB)
    assert asked(_set_up(**context), SCRIPT) is None


def test_a_worker_of_another_job_is_rays_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "02000000")
    assert asked(_set_up(), SCRIPT) is None


def test_without_a_fork_server_ray_starts_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", JOB)
    monkeypatch.setenv(forked_worker.FOLDER_VARIABLE, str(tmp_path))
    command = [sys.executable, SCRIPT, SCRIPT, "--node-id=7", "--language=PYTHON"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "usage: default_worker.py" in done.stderr


def test_torch_is_imported_with_the_threads_of_an_engine_and_compiles_only_for_ranks() -> None:
    engine = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    assert before_imports(Stage.WORKER, engine) == {}
    assert before_imports(Stage.TRAINER, engine) == {"OMP_NUM_THREADS": "1"}
    assert before_imports(Stage.ENGINE, engine) == engine


def test_an_actor_asks_for_a_stage_only_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(STAGES_VARIABLE, raising=False)
    assert warmed(Stage.ENGINE) == {}
    monkeypatch.setenv(STAGES_VARIABLE, "worker,trainer")
    assert warmed(Stage.ENGINE) == {}
    asks = {"runtime_env": {"env_vars": {STAGE_VARIABLE: "trainer"}}}
    assert warmed(Stage.TRAINER) == asks


def test_a_parameter_that_ray_has_no_longer_is_an_error() -> None:
    from ray._private.parameter import RayParams

    with ray_parameters(no_monitor=True):
        parameters = RayParams()
        parameters.update_if_absent(worker_path="a")
    assert (parameters.no_monitor, parameters.worker_path) == (True, "a")
    with ray_parameters(gone=True), pytest.raises(AttributeError, match="gone"):
        RayParams().update_if_absent()
