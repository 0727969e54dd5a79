"""The on-premises file of `deploy/ray` over hosts of this machine, and what it needs changed."""

import copy
import json
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from millrace_tools.deploy.wiring import arguments_of
from services.protocol.yaml_text import load_yaml
from tests.operations import hosts
from tests.operations.cpu_twin import cpu_twin
from tests.operations.network import Machine, Network

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "ray" / "onprem.yaml"
COMMAND_S = 1500.0
_PURPOSES = {"head": {"head": 1}, "left": {"trainer": 1}, "right": {"rollout": 1, "reward": 1}}
"""What stands in `/etc/millrace/node.json` of each host."""
_DESK = "desk"
"""The machine of the user."""
_KEY = ".ssh/id_ed25519"

_STAYS = ("ray", "torchinductor_", "pymp-", "millrace-toolchain-")
"""In /tmp: Ray's own, torch's cache, and the reward service's copy of a compiler, which its next
start removes."""

_SETTINGS = {
    # A machine that is busy with other tests starts a node slowly.
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of every login shell of the hosts."""


def changed(cluster: Mapping[str, Any], head: str, workers: list[str]) -> dict[str, Any]:
    """The file for these hosts, which reach no package index.

    The environment of this test lends its packages; Millrace itself is installed from the copy
    that `ray up` sent.
    """
    site, programs = sysconfig.get_path("purelib"), sysconfig.get_path("scripts")
    lend = f"echo {shlex.quote(site)} > ~/venv/lib/python3.11/site-packages/lent.pth"
    lend += f" && ln -sf {shlex.quote(programs)}/uv ~/venv/bin/uv"
    lend += ' && for one in ray serve; do sed "1s,.*,#!$HOME/venv/bin/python,"'
    lend += f" {shlex.quote(programs)}/$one > ~/venv/bin/$one && chmod +x ~/venv/bin/$one; done"
    offline = "--offline --no-deps --no-build-isolation -e ."
    file: dict[str, Any] = copy.deepcopy(dict(cluster))
    file["provider"] |= {"head_ip": head, "worker_ips": workers}
    setup = file["setup_commands"]
    for number, command in enumerate(setup):
        if "apt-get" in command:
            setup[number] = "true"
        elif "pip install --quiet 'uv" in command:
            setup[number] = lend
        elif "-e '.[cuda]'" in command:
            setup[number] = command.replace("-e '.[cuda]'", offline)
    return file


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """The places at which two files differ; a list of addresses is one value."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        pairs = [(one.get(key), other.get(key), f"{place}.{key}".lstrip(".")) for key in keys]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(*both, f"{place}[{n}]") for n, both in enumerate(zip(one, other, strict=True))]
    else:
        return [place] if one != other else []
    return [found for pair in pairs for found in differences(*pair)]


class OnPremises:
    """Three hosts and the machine of the user, who runs Ray's commands there.

    Attributes:
        hosts: by name, the head first.
        seconds: that each command took, by the name that the test gave it.
    """

    def __init__(self, network: Network, shared: Path) -> None:
        self._disk, self._shared = network.disk, shared
        self._desk = network.machines[_DESK]
        self.hosts: dict[str, Machine] = {name: network.machines[name] for name in _PURPOSES}
        self.seconds: dict[str, float] = {}

    @classmethod
    def names(cls) -> list[str]:
        """Of the machines that the network must have."""
        return [_DESK, *_PURPOSES]

    def prepare(self) -> Self:
        """Give every host its root, its purpose and its SSH server, and the user a key."""
        subprocess.run(["chmod", "--recursive", "a+rwX", self._shared], check=True)
        for machine in (self._desk, *self.hosts.values()):
            hosts.give_own_root(machine, self._disk, self._shared, _SETTINGS)
        key = f"/root/{_KEY}"
        self._user("key", f"ssh-keygen -q -t ed25519 -N '' -f {key}")
        for name, machine in self.hosts.items():
            purpose = machine.path("/etc/millrace/node.json")
            purpose.parent.mkdir()
            purpose.write_text(json.dumps(_PURPOSES[name]))
            hosts.serve_ssh(machine, self._desk.path(f"{key}.pub").read_text())
        head, *workers = (machine.address for machine in self.hosts.values())
        file = changed(load_yaml(FILE), head, workers)
        self._user("token", "ray get-auth-token --generate")
        self._desk.path("/root/onprem.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
        return self

    def ray(self, name: str, command: str, timeout_s: float = COMMAND_S) -> str:
        """Run a command of Ray's about the file, as the user does from the repository's root."""
        verb, _, rest = command.partition(" ")
        return self._user(name, f"ray {verb} /root/onprem.yaml {rest}", timeout_s)

    def on_the_head(self, name: str, command: str, timeout_s: float = COMMAND_S) -> str:
        """Run a command in the repository's copy on the head, by `ray exec`."""
        return self.ray(name, f"exec {shlex.quote(f'cd millrace && {command}')}", timeout_s)

    def stop_ray_on_workers(self) -> None:
        """As the guide says: `ray down` ends Ray on the head alone."""
        for machine in list(self.hosts.values())[1:]:
            address = f"{hosts.USER}@{machine.address}"
            options = "-o StrictHostKeyChecking=no -o LogLevel=ERROR"
            self._user(f"stop {machine.name}", f"ssh {options} {address} '~/venv/bin/ray stop'")

    def _user(self, name: str, command: str, timeout_s: float = COMMAND_S) -> str:
        began = time.monotonic()
        try:
            return hosts.run(
                self._desk,
                *("sh", "-c", f"cd {shlex.quote(str(ROOT))} && {command}"),
                timeout_s=timeout_s,
                HOME="/root",
                PATH=f"{Path(sys.executable).parent}:{hosts.PATH}",
                PYTHONPATH=str(ROOT),
                RAY_USAGE_STATS_ENABLED="0",
            )
        finally:
            self.seconds[name] = round(time.monotonic() - began, 1)

    def left_behind(self) -> dict[str, list[str]]:
        """By host: the user's processes, what is mounted, what lies in shared memory and /tmp.

        Ray's session in /tmp/ray stays for its logs, and so do caches that a next start uses.

        The server of the user's own SSH connections ends by itself a moment after them.
        """
        found = {}
        for name, machine in self.hosts.items():
            running = [line for line in hosts.processes(machine) if not line.startswith("sshd:")]
            mounted = hosts.run(machine, "cut", "-d ", "-f2", "/proc/mounts").splitlines()
            files = hosts.run(machine, "ls", "/dev/shm", "/tmp").split()
            files = [file for file in files if not file.startswith(_STAYS)]
            found[name] = [*running, *mounted, *files]
        return found


def three_hosts(model: str) -> dict[str, Any]:
    """`deploy/cluster.yaml` for CPUs; its services on the hosts that cluster-4-nodes.yaml names."""
    content = cpu_twin(load_yaml(ROOT / "deploy" / "cluster.yaml"), model)
    several = arguments_of(load_yaml(ROOT / "deploy" / "cluster-4-nodes.yaml"))
    for service, args in arguments_of(content).items():
        if "node_resource" in several[service]:
            args["node_resource"] = several[service]["node_resource"]
    return content
