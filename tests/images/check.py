"""Builds the images of deploy/docker, and runs Millrace in that for CPUs.

`sudo make images`; `python3.11 -m tests.images.check --help` from the repository's root. It needs
root, debootstrap, buildah, podman, crun, the package indexes of this machine, 30 GB and the
standard library alone. No registry of images is asked: a Debian 12 made by debootstrap stands in
for each base image, under the name that the Dockerfile asks for. Everything that is built lies in
one folder, which is removed at the end.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bare_machine.check import folders_and_files, index_settings, mirror

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "deploy" / "docker"
PAGE = REPOSITORY / "docs" / "deploying.md"
RECORD = Path(__file__).parent / "record.json"
TABLE = re.compile(r"(<!-- table: images -->\n).*?(<!-- end -->)", re.S)
IMAGES = ("cpu", "cuda")
SECCOMP = Path("/usr/share/containers/seccomp.json")
"""Podman's default profile, in Debian's golang-github-containers-common."""
NAMESPACES = ("clone", "unshare", "mount", "umount2", "pivot_root")
"""System calls that docs/rewards.md adds to the runtime's profile."""
BUILD_S, RUN_S = 7200, 1800
_PROCESSES = 32768
"""To so many buildah limits itself, whatever it then sets."""
# crun refuses a machine that mounts both versions of control groups, even if it shall make none.
_ONE_CGROUP = 'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"'
_PROGRAMS = ("debootstrap", "buildah", "podman", "crun")
_PACKAGES = "python3.11,python3.11-venv,python3-distutils,ca-certificates"


class Store:
    """Images and containers in a folder of their own, and the logs of what made them."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder, self.logs = folder, logs
        self._where = ["--root", f"{folder}/images", "--runroot", f"{folder}/run"]
        self._where += ["--storage-driver", "overlay"]
        # The programs' own limits may be higher than this process may set, and they lower nproc.
        files, processes = (
            resource.getrlimit(one)[1] for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
        )
        most = {"nofile": files, "nproc": min(processes, _PROCESSES)}
        lines = ", ".join(f'"{name}={number}:{number}"' for name, number in most.items())
        self._settings = folder / "containers.conf"
        self._settings.write_text(f"[containers]\ndefault_ulimits = [{lines}]\n")

    def run(self, name: str, program: str, *words: str, timeout_s: float) -> tuple[int, int]:
        """Run buildah or podman; returns its status and its seconds. Its output is in the logs."""
        began = time.monotonic()
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _ONE_CGROUP, "sh"]
        with (self.logs / f"{name}.log").open("wb") as log:
            done = subprocess.run(
                [*enter, program, *self._where, *words],
                cwd=REPOSITORY,
                env={**os.environ, "CONTAINERS_CONF": str(self._settings)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
                check=False,
            )
        return done.returncode, round(time.monotonic() - began)

    def said(self, name: str) -> str:
        """The log of this name."""
        return (self.logs / f"{name}.log").read_text(errors="replace")


def base_of(image: str) -> str:
    """The base image that the Dockerfile asks for, in full."""
    text = (DOCKER / f"{image}.Dockerfile").read_text()
    (name,) = re.findall(r"^FROM (\S+)$", text, re.M)
    return f"docker.io/{name if '/' in name else f'library/{name}'}"


def make_base(store: Store, root: Path, settings: Mapping[str, str]) -> None:
    """A Debian 12 with Python, under the names of all base images.

    Args:
        store: for the images.
        root: folder of the Debian, which is removed.
        settings: of the package indexes. They are the images' own variables, since `--env` of
            Debian's buildah reaches no step.
    """
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm"]
    with (store.logs / "debootstrap.log").open("wb") as log:
        subprocess.run([*command, root, mirror()], stdout=log, stderr=log, check=True)
    (root / "usr" / "bin" / "python").symlink_to("python3.11")
    archive = store.folder / "base.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    shutil.rmtree(root)
    for image in IMAGES:
        words = [f"--change=ENV {name}={json.dumps(value)}" for name, value in settings.items()]
        words = ["import", *words, str(archive), base_of(image)]
        status, _ = store.run(f"{image}-base", "podman", *words, timeout_s=BUILD_S)
        if status != 0:
            sys.exit(f"error: podman import failed:\n{store.said(f'{image}-base')}")
    archive.unlink()


def build(store: Store, image: str, settings: Mapping[str, str]) -> tuple[str, int]:
    """Build the Dockerfile; how it ended and after how many seconds.

    Args:
        settings: of the package indexes, whose folders each step sees.
    """
    words = ["build", "--isolation", "chroot", "--pull-never", "--layers=false"]
    words += ["--file", str(DOCKER / f"{image}.Dockerfile"), "--tag", f"localhost/millrace:{image}"]
    for path in folders_and_files(settings):
        words += ["--volume", f"{path}:{path}:ro"]
    if settings.get("UV_FIND_LINKS"):
        words += ["--build-arg", "TORCH_BACKEND="]  # it has the CPU build of torch
    status, seconds = store.run(f"{image}-build", "buildah", *words, ".", timeout_s=BUILD_S)
    if status == 0:
        return "passed", seconds
    steps = re.findall(r"^STEP (\d+/\d+): (.{0,60})", store.said(f"{image}-build"), re.M)
    return f"failed at {' '.join(steps[-1]) if steps else 'the start'}", seconds


def profile(store: Store) -> Path:
    """The seccomp profile that docs/rewards.md says how to make."""
    content = json.loads(SECCOMP.read_text())
    content["syscalls"] += [{"names": list(NAMESPACES), "action": "SCMP_ACT_ALLOW"}]
    path = store.folder / "millrace.json"
    path.write_text(json.dumps(content))
    return path


def run(store: Store, name: str, command: Sequence[str]) -> tuple[str, int]:
    """Run a command in the image for CPUs, as its user, without a network."""
    words = ["run", "--rm", "--runtime", "crun", "--cgroups", "disabled", "--network", "none"]
    words += ["--shm-size", "2g", "--security-opt", f"seccomp={profile(store)}"]
    words += ["--security-opt", "no-new-privileges", "--cap-drop", "all"]
    status, seconds = store.run(
        name, "podman", *words, "localhost/millrace:cpu", *command, timeout_s=RUN_S
    )
    return ("passed" if status == 0 else f"failed ({status})"), seconds


def examine(store: Store) -> dict[str, tuple[str, int]]:
    """Who runs in the image, what `doctor` says of the sandbox there, and the demo."""
    results = {"user": run(store, "user", ["id", "-u"])}
    if store.said("user").strip() != "1000":
        results["user"] = (f"failed: {store.said('user')[:60]}", results["user"][1])
    _, seconds = run(store, "doctor", ["millrace", "doctor"])  # a busy machine is a fault
    tier_a = '"found": "tier A' in store.said("doctor")
    results["doctor: tier A"] = ("passed" if tier_a else "failed", seconds)
    results["millrace demo"] = run(store, "demo", ["millrace", "demo"])
    return results


def table(record: Mapping[str, Any]) -> str:
    """The results as docs/deploying.md shows them."""
    lines = ["| step | result | seconds | commit |", "|---|---|---|---|"]
    for name, (ending, seconds, commit) in record["results"].items():
        lines.append(f"| {name} | {ending} | {seconds:,} | `{commit}` |")
    where = f"{record['date']}, on {record['cores']} cores; {record['with']}."
    return "\n".join([*lines, "", where, ""])


def page(text: str, record: Mapping[str, Any]) -> str:
    """docs/deploying.md with the table of this record."""
    return TABLE.sub(lambda mark: mark[1] + table(record) + mark[2], text)


def complaint() -> str:
    """What is missing to run this, with its fix; empty: nothing."""
    if os.geteuid() != 0:
        return "it needs root, to make a Debian and containers -> sudo make images"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return (
        f"{', '.join(missing)} missing -> apt-get install {' '.join(_PROGRAMS)}" if missing else ""
    )


def main() -> int:
    """Build, run, say, and keep; 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=IMAGES, help="one of the images")
    parser.add_argument("--record", action="store_true", help="write the record and docs")
    given = parser.parse_args()
    if problem := complaint():
        print(f"error: {problem}")
        return 2
    began = datetime.now(UTC)
    ask = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    logs = REPOSITORY / "build" / "images" / f"{began:%Y%m%d-%H%M%S}"
    logs.mkdir(parents=True)
    print(f"logs: {logs}", flush=True)
    settings = index_settings()
    settings.setdefault("UV_FIND_LINKS", settings.get("PIP_FIND_LINKS", ""))
    results: dict[str, tuple[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-images-") as folder:
        store = Store(Path(folder), logs)
        try:
            make_base(store, Path(folder) / "debian", settings)
            for image in [given.only] if given.only else IMAGES:
                results[f"build of {image}.Dockerfile"] = build(store, image, settings)
                print(results, flush=True)
            if given.only != "cuda":
                results |= examine(store)
        finally:
            store.run("clean", "podman", "rmi", "--all", "--force", timeout_s=RUN_S)
    versions = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=True)
    kept = json.loads(RECORD.read_text())["results"] if given.only and RECORD.exists() else {}
    record = {
        "date": f"{began:%Y-%m-%d}",
        "cores": len(os.sched_getaffinity(0)),
        "with": versions.stdout.strip(),
        "results": kept | {name: (*one, commit) for name, one in results.items()},
    }
    print(table(record))
    if given.record:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    return 0 if all(ending == "passed" for ending, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
