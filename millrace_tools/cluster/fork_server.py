"""Processes that import the modules of a private cluster's workers once, and fork each worker.

A worker of Ray spends seconds of CPU on imports, and a laptop's cluster has fifteen workers. Here
one process imports the modules of all workers and answers `forked_worker.py` on a socket. A child
of it imports those of trainer ranks, too, and a child of that those of engines. Such a process
only imports: it has no working thread, no connection and has drawn no random number, so that a
copy of it equals a new process. It ends with its standard input.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from millrace_tools.cluster import forked_worker
from millrace_tools.cluster.ray_patches import fork_safe_imports, refuse_shared_randomness
from services.observability.garbage import heavy_imports
from services.warm_workers import STAGES_VARIABLE, Stage

MODULES = {
    Stage.WORKER: (
        "ray._private.workers.default_worker",
        "ray.serve._private.controller",
        "ray.serve._private.proxy",
        "ray.serve._private.replica",
        *(
            f"services.{service}.app"
            for service in (
                *("weight_bus", "reward_service", "trainer", "rollout_server"),
                *("router", "orchestrator", "page"),
            )
        ),
    ),
    Stage.TRAINER: (
        "services.trainer.rank.learner",
        "services.trainer.snapshot.bus_member",
        "services.trainer.rank.fault_injector",
    ),
    Stage.ENGINE: (
        "vllm.v1.metrics.ray_wrappers",
        "services.rollout_server.engine.vllm_patches.pressure_gauges",
        "services.rollout_server.replica",
    ),
}
_TORCH = frozenset({"OMP_NUM_THREADS", "THP_MEM_ALLOC_ENABLE"})
_AT_ONCE = 32
_REGISTER_S = 300
"""More than Ray's 60: on a busy machine vLLM's imports alone may take that long."""
_RECEIVE_S = 10.0
LOG = "log"


class ForkServers:
    """The fork servers of one private cluster, from the owner's side.

    Attributes:
        parameters: of a node of Ray that is to ask them for its workers.

    Args:
        folder: of the sockets; short, since a socket's path has 107 characters at most.
        engine: variables that must be in the environment before vLLM is imported.
        stages: which there are, from the first.
    """

    parameters: ClassVar = dict.fromkeys(
        ("worker_path", "setup_worker_path"), forked_worker.__file__
    )

    def __init__(
        self, folder: Path, engine: Mapping[str, str], stages: Sequence[Stage] = tuple(Stage)
    ) -> None:
        self._folder, self._stages = folder, stages
        self._engine = engine
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, str]:
        """Start them, in a session of their own that a terminal's signals do not reach.

        Returns:
            Variables for the environment of the cluster.
        """
        self._folder.mkdir(mode=0o700)  # a process that may connect may run code
        variables = {
            forked_worker.FOLDER_VARIABLE: str(self._folder),
            STAGES_VARIABLE: ",".join(self._stages),
            # Ray starts as many at a time as there are cores, and those that wait for a stage
            # would keep back all others.
            "RAY_worker_maximum_startup_concurrency": str(_AT_ONCE),
            "RAY_worker_register_timeout_seconds": str(_REGISTER_S),
        }
        listeners = {stage: _listener(self._folder / stage) for stage in self._stages}
        handed = {stage: listener.fileno() for stage, listener in listeners.items()}
        job = {"listeners": handed, "engine": dict(self._engine)}
        with (self._folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(job)],
                env=os.environ | variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=list(handed.values()),
                start_new_session=True,
            )
        for listener in listeners.values():
            listener.close()
        return variables

    def stop(self) -> None:
        """End them; their workers continue."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(128)
    return listener


def main() -> None:
    """Import stage after stage, each in a child of the one before, and serve."""
    job = json.loads(sys.argv[1])
    # Ray reads both when it is imported. Workers end with the process that has the raylet's id:
    # here it is this one; their connection tells them the end of the real raylet.
    os.environ.update(RAY_JOB_ID=forked_worker.JOB, RAY_RAYLET_PID=str(os.getpid()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for a worker
    listeners = {stage: socket.socket(fileno=number) for stage, number in job["listeners"].items()}
    for stage in list(listeners):
        os.environ.update(before_imports(stage, job["engine"]))
        with heavy_imports(), fork_safe_imports():
            for name in MODULES[Stage(stage)]:
                import_module(name)
        listener = listeners.pop(stage)
        if not listeners or os.fork():
            refuse_shared_randomness()
            serve(listener, [*listeners.values()])
        listener.close()


def before_imports(stage: str, engine: Mapping[str, str]) -> dict[str, str]:
    """Variables that must be there before a stage's imports.

    Torch reads its own once for both of its stages. Ranks set their number of threads themselves.
    """
    read = {Stage.WORKER: frozenset(), Stage.TRAINER: _TORCH, Stage.ENGINE: frozenset(engine)}
    return {name: value for name, value in engine.items() if name in read[Stage(stage)]}


def serve(listener: socket.socket, others: list[socket.socket]) -> NoReturn:
    """Fork a worker for each that asks, until standard input ends.

    Args:
        listener: where they ask.
        others: sockets of other stages, which are theirs alone.
    """
    for other in others:
        other.close()
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            os._exit(0)  # nothing to unwind, but thousands of modules
        connection, _ = listener.accept()
        with connection:
            files: list[int] = []
            try:
                job = _received(connection, files)
                is_worker = os.fork() == 0
            except (OSError, ValueError) as problem:  # without an answer Ray's own script starts it
                print(f"no worker: {problem}", file=sys.stderr, flush=True)
            else:
                if is_worker:
                    listener.close()
                    connection.close()
                    _become(job, files)
                with suppress(OSError):  # the process that asked has ended
                    connection.sendall(b"started")
            for file in files:
                os.close(file)


def _received(connection: socket.socket, files: list[int]) -> dict[str, Any]:
    """The worker to fork; its files are added to `files`.

    Raises:
        OSError: the process that asked has given up.
    """
    connection.settimeout(_RECEIVE_S)
    _, sent, _, _ = socket.recv_fds(connection, 1, 3, socket.MSG_CMSG_CLOEXEC)
    files += sent
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    asking = select.poll()
    asking.register(connection, 0)
    if any(event & select.POLLHUP for _, event in asking.poll(0)):
        raise ConnectionAbortedError("the process that asked has given up")
    job: dict[str, Any] = json.loads(b"".join(parts))
    return job


def _become(job: dict[str, Any], files: list[int]) -> NoReturn:
    """Become the worker: with its environment, folder, files and script."""
    os.setpgid(0, 0)  # when a worker is gone the raylet ends its group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # as Python's own generator does by itself
    worker = import_module("ray._private.workers.default_worker").__file__
    assert worker is not None
    sys.argv = [worker, *job["argv"]]
    runpy.run_path(worker, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
