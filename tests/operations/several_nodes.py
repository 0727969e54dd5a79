"""One Ray node on each of several machines, and the six services over all of them."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from millrace_tools.client.application_status import leased_replicas
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.client.services_url import API_KEY
from tests.operations.agent import Agent
from tests.operations.network import Machine, Network, wait_for

ROOT = Path(__file__).parents[2]
PORT, RAY_PORT = 8000, 6379
FRONT = "front"
"""The Ray resource of the machine with router, orchestrator and page."""
NODE_UP_S, DEPLOYED_S, SETTLE_S = 120.0, 400.0, 300.0
KEYS, ROUTER_KEY = "MILLRACE_KEYS", "MILLRACE_ROUTER_KEY"

PORTS = {
    "dashboard-agent-grpc-port": 52361,
    "dashboard-agent-listen-port": 52362,
    "runtime-env-agent-port": 52363,
    "metrics-export-port": 52364,
}

PATIENCE = {
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_raylet_start_wait_time_s": "120",
}
"""Of a node that starts on a machine which is busy with others."""

HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "20000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}
"""Of Ray's head: a node that is cut off is dead to it after about 20 s. Less, and nodes of a busy
machine that start all at once are dead before they are up."""


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """A campaign that runs.

    Attributes:
        process: enters the machine, and has the command below it.
        report: which it writes at its end.
    """

    process: "subprocess.Popen[bytes]"
    report: Path

    def said(self) -> str:
        """All that it says, at its end."""
        return self.process.communicate(timeout=DEPLOYED_S)[0].decode()

    def signal(self, number: signal.Signals) -> None:
        """To the command itself."""
        (command,) = psutil.Process(self.process.pid).children()
        command.send_signal(number)


class RayNodes:
    """A cluster of one node a machine, with a token; a context manager.

    Attributes:
        key: an API key of the services.
        disk: where each machine has its own disk.
    """

    def __init__(
        self, network: Network, resources: Mapping[str, Mapping[str, float]], logs: Path
    ) -> None:
        self.key = secrets.token_hex(16)
        self.disk, self._logs = network.disk, logs
        self._machines, self._resources = network.machines, resources
        self._head = next(iter(network.machines.values()))
        self._front = next(name for name, has in resources.items() if FRONT in has)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        # Not this process's own settings of Ray, nor its proxies.
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
        keys = [{"name": "test", "key": self.key}]
        # Its commands are those beside this Python, whether the environment is activated or not.
        kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self._environment = {
            **kept,
            **PATIENCE,
            **HEALTH_CHECKS,
            "HOME": f"{self.disk}/home",
            "TMPDIR": f"{self.disk}/tmp",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            KEYS: json.dumps(keys),
            ROUTER_KEY: self.key,
            API_KEY: self.key,
        }

    def __enter__(self) -> Self:
        for machine in self._machines.values():
            for folder in ("home", "tmp"):
                machine.path(self.disk / folder).mkdir(mode=0o777)
        try:
            for machine in self._machines.values():
                self.start(machine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def set_environment(self, **settings: str) -> None:
        """For all nodes and commands, before they start."""
        self._environment |= settings

    def _keep_logs(self) -> None:
        """What Ray and the services logged, for after the machines are gone."""
        for name, machine in self._machines.items():
            for logs in machine.path(self.disk).glob("ray*/session_2*/logs"):
                kept = self._logs / name / logs.parts[-3]
                shutil.copytree(logs, kept, ignore_dangling_symlinks=True, dirs_exist_ok=True)

    def __exit__(self, *_: object) -> None:
        self._keep_logs()
        for process in self._processes:
            process.kill()  # what it started goes with its machine
            process.wait()

    @property
    def url(self) -> str:
        """Of the router, which listens where it runs and nowhere else."""
        return f"http://{self._machines[self._front].address}:{PORT}"

    def of(self, name: str, path: str) -> Path:
        """A path on a machine's disk as this process sees it."""
        return self._machines[name].path(self.disk / path)

    @contextlib.contextmanager
    def client(self) -> Iterator[RunsClient]:
        """A client of the orchestrator, from the head's network."""
        os.environ[API_KEY] = self.key
        try:
            with self._head.network(), RunsClient(self.url) as client:
                yield client
        finally:
            del os.environ[API_KEY]

    def start(self, machine: Machine) -> None:
        """Start Ray on a machine, as its init system would, and wait until it has joined."""
        number = len(self._processes)
        command = ["ray", "start", "--block", f"--node-ip-address={machine.address}"]
        command += ["--object-store-memory=100000000", f"--temp-dir={self.disk}/ray{number}"]
        command += ["--include-log-monitor=false"]
        # Where its ports are known, a node does not wait for its agents to say them, which on a
        # busy machine takes longer than it waits.
        command += [f"--{name}={port}" for name, port in PORTS.items()]
        resources = dict(self._resources[machine.name])
        command += [f"--num-cpus={resources.pop('CPU')}", f"--num-gpus={resources.pop('GPU', 0)}"]
        if memory := resources.pop("memory", 0):
            command += [f"--memory={memory:.0f}"]
        command += [f"--resources={json.dumps(resources)}"]
        if machine is self._head:
            command += ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        else:
            command += [f"--address={self._head.address}:{RAY_PORT}"]
        said = machine.path(self.disk / f"ray{number}.log")
        with said.open("wb") as log:
            node = self._spawn(machine, *command, said=log)
        self._processes.append(node)
        self._nodes[machine.name] = node

        def has_joined() -> bool:
            assert node.poll() is None, f"{machine.name}: {said.read_text()}"
            return "Ray runtime started" in said.read_text()

        wait_for(has_joined, f"Ray on {machine.name}", NODE_UP_S)

    def back(self, machine: Machine, is_back: Callable[[], bool], timeout_s: float) -> str:
        """Wait until what was cut off is back; a node that Ray has given up ends by itself, and
        is started again as its init system would. Returns how it came back."""
        how = "as it was"

        def came() -> bool:
            nonlocal how
            if self._nodes[machine.name].poll() is not None:
                self.start(machine)
                how = "as a new node"
            return is_back()

        wait_for(came, f"{machine.name} back", timeout_s)
        return how

    def agent(self, model: str) -> Agent:
        """Somebody who uses the router from the head's network."""
        return Agent(self._head, self.url, self.key, model)

    def _spawn(self, machine: Machine, *command: str, said: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            machine.command(*command),
            env=self._environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )

    def tables(self) -> list[dict[str, Any]]:
        """The member tables so far: `at`, by the monotonic clock, and `members`."""
        lines = (self._logs / "members.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"at"')]

    def members(self) -> list[dict[str, Any]]:
        """The newest table's rows; empty before the first."""
        tables = self.tables()
        return tables[-1]["members"] if tables else []

    def machine(self, name: str) -> Machine:
        """A machine by its name."""
        return self._machines[name]

    def run(self, machine: Machine, *command: str, timeout_s: float = 120.0) -> str:
        """Run a command to its end on a machine of the cluster; returns what it said.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run(
            machine.command(*command),
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{machine.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def chaos(self, machine: Machine, run_id: str, faults: list[dict[str, Any]]) -> Chaos:
        """`millrace chaos` on a machine that sees the run's directory."""
        script, report = self.disk / "faults.yaml", self.disk / "report.json"
        machine.path(script).write_text(yaml.safe_dump({"faults": faults}))
        machine.path(report).unlink(missing_ok=True)
        command = ["millrace", "chaos", run_id, "--yes", "--url", f"http://127.0.0.1:{PORT}"]
        command += ["--address", f"{self._head.address}:{RAY_PORT}", "--settle", f"{SETTLE_S:g}"]
        command += ["--script", str(script), "--json", str(report)]
        process = self._spawn(machine, *command, said=subprocess.PIPE)
        self._processes.append(process)
        return Chaos(process=process, report=machine.path(report))

    def deploy(self, content: dict[str, Any], replicas: int) -> None:
        """Deploy as a user does, from the head, and wait for so many leased replicas."""
        file = self._head.path(self.disk / "deploy.yaml")
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        self.run(self._head, "millrace", "check", f"{self.disk}/deploy.yaml")
        address = f"--address={self._head.address}:{RAY_PORT}"
        self.run(
            self._head,
            *("serve", "run", "--non-blocking", address, f"{self.disk}/deploy.yaml"),
            timeout_s=DEPLOYED_S,
        )
        with self._head.network():
            wait_for(lambda: leased_replicas(self.url) == replicas, "leases", DEPLOYED_S)
        watch = [sys.executable, "-m", "tests.operations.member_watch"]
        with (self._logs / "members.jsonl").open("wb") as tables:
            self._processes.append(self._spawn(self._head, *watch, address[10:], said=tables))
