"""What the owner of a private cluster does in a process of its own."""

import faulthandler
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rich.console import Console

from millrace_tools.cluster import private_cluster
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.demo.demo import terminated_like_interrupted
from millrace_tools.deploy.deployment import Deployment


def own_a_cluster(told: Connection, threads: Path) -> None:
    """Tell the cluster's folder and the id of a child, then do nothing.

    SIGABRT has it write into `threads` where each of them is.
    """
    with threads.open("w") as file:
        faulthandler.enable(file)
        _own(told)


def _own(told: Connection) -> None:
    with terminated_like_interrupted(), PrivateCluster(num_cpus=1) as cluster:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        told.send((str(cluster.folder), child.pid))
        while True:
            time.sleep(0.1)  # a signal that comes just before a sleep is heard after it


def deploy_scripted(told: Connection, interrupted: bool) -> None:
    """Deploy what is interrupted while it starts or runs at once; tell what Serve was asked."""
    asked: list[float] = []

    def wait(states: Any, console: Console, timeout_s: float) -> None:
        if interrupted:
            raise KeyboardInterrupt

    def shut_down(timeout_s: float) -> None:
        asked.append(timeout_s)

    built = SimpleNamespace(replicas_of=lambda name: 2, start=lambda changing: None, states=None)
    mock.patch.object(private_cluster, "shut_down_serve", shut_down).start()
    mock.patch.object(private_cluster, "wait_until_running", wait).start()
    mock.patch.object(Deployment, "check", return_value=built).start()
    try:
        with PrivateCluster(num_cpus=1) as cluster:
            cluster.deploy({}, Console(), timeout_s=1)
    except KeyboardInterrupt:
        pass
    told.send(asked)
