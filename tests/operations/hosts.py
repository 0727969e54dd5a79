"""Machines with a root of their own and an SSH server: what `ray up` asks of a machine.

The root is a layer over this machine's: each host sees the same programs, and writes `/etc`,
`/tmp`, `/home` and the rest for itself. A host has one user, who may use `sudo`, and one folder
that all hosts share.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.operations import network
from tests.operations.network import Machine, wait_for

USER = "ubuntu"
SHARED = "/shared"
ROOT = Path(__file__).parents[2]
_NEEDED = {"sudo": "sudo", "rsync": "rsync", "ssh": "openssh-client", "sshd": "openssh-server"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UP_S = 60.0

_OWN_ROOT = r"""
set -e
cd {disk}
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir={disk}/upper,workdir={disk}/work root
cd root
mount -t tmpfs -o mode=1777 tmp tmp
for folder in {lent}; do mkdir -p ".$folder"; done
chmod a+x {above}
for folder in {lent}; do mount -o bind,ro "$folder" ".$folder"; done
mkdir .{shared}
mount --bind {shared_folder} .{shared}
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t proc proc proc
mount -t tmpfs -o mode=755 run run
mount -o remount,size=4g dev/shm
mount -o remount,size=6g {disk}
pivot_root . mnt
cd /
umount -l /mnt
ip route add default dev eth0
printf '#!/bin/sh\nexec {python} "$@"\n' > /usr/local/bin/python3.11
chmod 755 /usr/local/bin/python3.11
hostname > /etc/hostname
echo "127.0.0.1 localhost $(hostname)" > /etc/hosts
useradd --create-home --shell /bin/bash --password '*' {user}
echo '{user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{user}
printf '{settings}' > /etc/profile.d/host.sh
mkdir -p -m 755 /run/sshd
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
install -d -m 700 -o {user} -g {user} /home/{user}/.ssh
"""


def why_not() -> str | None:
    """Why this machine cannot be split into hosts, None if it can."""
    for program, package in _NEEDED.items():
        if shutil.which(program, path=PATH) is None:
            return f"there is no `{program}`: apt-get install {package}"
    return network.why_not()


def give_own_root(machine: Machine, disk: Path, shared: Path, settings: Mapping[str, str]) -> None:
    """Let everything on the machine from now on see a root that nobody else writes.

    Args:
        disk: the machine's own.
        shared: the folder that all hosts have at `SHARED`.
        settings: environment of every login shell.
    """
    # What is mounted below the root is not in the layer below; it is lent.
    lent = [Path(folder).resolve() for folder in (ROOT, sys.prefix, sys.base_prefix)]
    above = {f"./{one.relative_to('/')}" for folder in lent for one in folder.parents}
    script = _OWN_ROOT.format(
        disk=disk,
        shared=SHARED,
        shared_folder=shlex.quote(str(shared)),
        lent=" ".join(shlex.quote(str(folder)) for folder in lent),
        above=" ".join(map(shlex.quote, sorted(above))),
        python=shlex.quote(f"{sys.base_prefix}/bin/python3.11"),
        user=USER,
        settings="".join(f"export {name}={value}\\n" for name, value in settings.items()),
    )
    run(machine, "sh", "-c", script)


def run(machine: Machine, *command: str, timeout_s: float = _UP_S, **environment: str) -> str:
    """Run a command on a machine, as root, to its end; returns what it said.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(
        machine.command(*command),
        env={"PATH": PATH, "LANG": "C.UTF-8", **environment},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{machine.name}: {' '.join(command)}\n{done.stdout}"
    return done.stdout


def serve_ssh(machine: Machine, public_key: str) -> None:
    """Start the machine's SSH server, which lets the user in with this key."""
    keys = f"/home/{USER}/.ssh/authorized_keys"
    machine.path(keys).write_text(public_key)
    settings = ["PasswordAuthentication=no", "StrictModes=no", "PidFile=/run/sshd.pid"]
    settings += ["HostKey=/etc/ssh/ssh_host_ed25519_key", "LogLevel=ERROR"]
    options = [word for setting in settings for word in ("-o", setting)]
    # It becomes a daemon, and goes with the machine.
    run(machine, "/usr/sbin/sshd", "-f", "/dev/null", "-E", "/run/sshd.log", *options)
    wait_for(lambda: machine.path("/run/sshd.pid").exists(), f"SSH on {machine.name}", _UP_S)


def processes(machine: Machine, user: str = USER) -> Iterator[str]:
    """The command lines of the user's processes there."""
    listed = run(machine, "sh", "-c", f"ps -u {user} -o args= || true")
    yield from (line for line in listed.splitlines() if line.strip())
