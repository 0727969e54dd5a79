"""A private Ray cluster that ends with the command, in a folder of its own."""

import contextlib
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import ray
from rich.console import Console

from millrace_tools.cluster import guardian
from millrace_tools.cluster.fork_server import ForkServers
from millrace_tools.cluster.leftovers import (
    adopt_orphans,
    end_descendants,
    kill_those_with,
    remove_segments_since,
    shared_memory_segments,
)
from millrace_tools.cluster.orphan_reaper import OrphanReaper
from millrace_tools.cluster.ray_patches import end_before_destructors, ray_parameters
from millrace_tools.deploy.deployment import Deployment, shut_down_serve
from millrace_tools.deploy.wait import wait_until_running
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import NAMESPACE

_OBJECT_STORE_BYTES = 128 << 20
_SERVE_S = 15.0
_GRACE_S = 5.0
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # a token would be left in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    # Events of calls, up to 100,000 of 3 KiB each; nothing reads them here.
    "RAY_task_events_report_interval_ms": "0",
    # Three looks in a row must miss a proxy before Serve starts another: 30 s by default.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    # Serve kills a proxy that is not up in time: 5 s by default, which a busy machine needs for
    # its imports alone.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # By default 15: the services would get 3 % of a core that any other program uses.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns about its own future
    "TOKENIZERS_PARALLELISM": "false",
}
_PARAMETERS = {
    "include_log_monitor": False,  # it sends logs to drivers, and `log_to_driver` is off
    "no_monitor": True,  # the autoscaler's, and there are no nodes to be had
}


class PrivateCluster:
    """A context manager: nothing of the cluster is left after it, whatever happened in it.

    Processes, their temporary files, sockets and logs live in one short folder below /tmp
    (socket paths may have 107 characters at most).

    Args:
        num_cpus: that Ray counts with.
        num_gpus: that Ray gives out.
        engine: environment of engines; where it is given, workers are forked from processes that
            have imported their modules, else each imports its own.
    """

    def __init__(
        self, *, num_cpus: int, num_gpus: int = 0, engine: Mapping[str, str] | None = None
    ) -> None:
        self._num_cpus, self._num_gpus, self._engine = num_cpus, num_gpus, engine
        self._forks: ForkServers | None = None
        self._undo = contextlib.ExitStack()
        self._serves = False
        self.folder, self.metrics_url = Path(), ""

    def __enter__(self) -> Self:
        adopted = adopt_orphans()
        tempfile.gettempdir()  # which remembers its first answer: this process's own files stay
        segments, environment = shared_memory_segments(), dict(os.environ)
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-", dir="/tmp"))
        self.folder.chmod(0o755)  # sandboxes run as another user and pass through it
        # By its path and without site packages: it starts in milliseconds.
        command = [sys.executable, "-I", "-S", guardian.__file__, str(self.folder)]
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        scratch = self.folder / "tmp"
        scratch.mkdir()
        scratch.chmod(0o1777)
        undo = self._undo.callback  # from the last to the first
        undo(watcher.communicate)
        undo(os.environ.update, environment)
        undo(os.environ.clear)
        undo(shutil.rmtree, self.folder, ignore_errors=True)
        undo(remove_segments_since, segments)
        undo(adopt_orphans, adopted)
        undo(self._end_processes, watcher.pid)
        os.environ.update(_ENVIRONMENT, TMPDIR=str(scratch))
        os.environ.pop("RAY_ADDRESS", None)
        if self._engine is not None:
            self._forks = ForkServers(self.folder / "forks", self._engine)
            undo(self._forks.stop)
            os.environ.update(self._forks.start())
        reaper = OrphanReaper()
        undo(reaper.stop)
        reaper.start()
        return self

    def start(self) -> None:
        """Start Ray and connect to it.

        Raises:
            NotReady: Ray does not come up.
        """
        on_terminate = signal.getsignal(signal.SIGTERM)
        try:
            self._start_ray()
        except NotReady:  # again: the files that it loads are in memory by now
            kill_those_with(f"{self.folder}/session_")
            self._start_ray()
        signal.signal(signal.SIGTERM, on_terminate)  # Ray's own prints a stack
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        node = ray.nodes()[0]  # type: ignore[no-untyped-call]
        address = node["NodeManagerAddress"]
        self.metrics_url = f"http://{address}:{node['MetricsExportPort']}/metrics"

    def _start_ray(self) -> None:
        parameters = _PARAMETERS | (self._forks.parameters if self._forks is not None else {})
        try:
            with ray_parameters(**parameters):
                ray.init(
                    address="local",
                    namespace=NAMESPACE,
                    num_cpus=self._num_cpus,
                    num_gpus=self._num_gpus,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(self.folder),
                )
        except Exception as error:
            # Ray has no class of its own for a node that takes more than its 30 s to come up, as
            # it may after an installation, when nothing has been read from the disk before.
            raise NotReady(f"Ray does not come up: {error}") from error

    def deploy(
        self, content: Any, console: Console, *, timeout_s: float, changing: bool = False
    ) -> int:
        """Check a deployment file's content, deploy it and wait until it runs.

        Args:
            content: of the file.
            console: shows the status of each application.
            timeout_s: to wait.
            changing: see `Deployment.start`.

        Returns:
            How many rollout servers it has.

        Raises:
            InvalidInput: the content cannot be used.
            NotReady: an application does not come up in time.
        """
        deployment = Deployment.check(content, source="deployment")
        deployment.start(changing=changing)
        wait_until_running(deployment.states, console, timeout_s=timeout_s)
        self._serves = True
        return deployment.replicas_of("rollout_server")

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of Ray and the services out of the cluster's folder."""
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(self.folder / "session_latest" / "logs", folder, dirs_exist_ok=True)

    def close(self) -> None:
        """End everything, signals or not; a second call does nothing.

        Serve waits for replicas that are still starting before it stops them. Where not all
        of them ever ran there is nothing to end gently, and they are killed instead.
        """
        if not self.folder.name:
            return
        # Ray tells the terminal that the controller died when it has ended itself.
        with _uninterrupted(), contextlib.redirect_stdout(io.StringIO()):
            try:
                if self._serves:
                    shut_down_serve(timeout_s=_SERVE_S)
            finally:
                ray.shutdown()
                end_before_destructors()
                self._undo.close()
                self.folder = Path()

    def _end_processes(self, guardian_pid: int) -> None:
        grace_s = _GRACE_S if self._serves else 0.0
        end_descendants(grace_s=grace_s, spare=frozenset({guardian_pid}))

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals that would leave a shutdown half-done; each of its steps is bounded."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in signals]
    try:
        yield
    finally:
        for number, action in zip(signals, before, strict=True):
            signal.signal(number, action)
