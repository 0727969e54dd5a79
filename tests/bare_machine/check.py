"""Runs both commands of README in a Debian 12 that has nothing but what README asks for.

`sudo make bare-machine`, or `python3 tests/bare_machine/check.py --help`. It needs root and
debootstrap, and the standard library alone. Each run is a fresh clone of HEAD in a file system
and a process namespace of its own, so that it sees no package of this machine and no process
of it outlives the check. The network is this machine's: nothing else may listen on port 8000.
"""

import argparse
import ast
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "installing.md"
RECORD = Path(__file__).parent / "record.json"
TABLE = re.compile(r"(<!-- table: bare machine -->\n).*?(<!-- end -->)", re.S)
# debootstrap resolves no virtual packages: distutils is what python3.11-venv asks for.
PACKAGES = "python3.11,python3.11-venv,python3-distutils,make,git,ca-certificates"
COMMANDS = {"demo": 3600, "test": 3 * 3600}
"""Each `make` target of README, and the seconds after which it hangs."""
USERS = {"root": (0, "root"), "user": (1000, "home/user")}
"""Id and home of each user."""
SOFT_OPEN_FILES = 1024
_OF_INDEX = re.compile(
    r"(?:PIP|UV)_(?!CACHE_DIR)\w+|SSL_CERT_(?:FILE|DIR)|(?:REQUESTS|CURL)_CA_BUNDLE"
    r"|(?:HTTPS?|ALL|NO)_PROXY",
    re.I,
)
_COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")

# The shell is process 1 and waits for all: when it ends, the kernel ends what is left. The root
# is entered by pivot_root, because behind chroot the kernel makes no user namespaces.
_ENTER = """
set -e
mount --bind {root} {root}
cd {root}
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=0755 dev dev
for node in null zero full random urandom tty; do
  : > dev/$node; mount --bind /dev/$node dev/$node
done
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mkdir dev/shm dev/pts; ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
{binds}
pivot_root . mnt
cd /
umount -l /mnt
for burner in {burners}; do (while :; do :; done) & done
ulimit -Sn {open_files}
setpriv --reuid={uid} --regid={uid} --init-groups sh -c 'cd "$HOME/millrace" && {command}'
"""


def index_settings() -> dict[str, str]:
    """Where packages come from: pip's configuration files, and above them the environment."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    lines = re.findall(r"^(?:global|install)\.([\w-]+)=(.*)$", listed, re.M)
    files = {
        f"PIP_{key.upper().replace('-', '_')}": ast.literal_eval(value) for key, value in lines
    }
    given = {key: value for key, value in os.environ.items() if _OF_INDEX.fullmatch(key)}
    return {key: " ".join(value.split()) for key, value in {**files, **given}.items()}


def folders_and_files(settings: Mapping[str, str]) -> list[Path]:
    """What of this machine the settings name, by path or file URL: it is lent, read-only."""
    words = [urlsplit(word).path for value in settings.values() for word in value.split()
             if word.startswith(("/", "file://"))]  # fmt: skip
    found = sorted({Path(word) for word in words if Path(word).exists()})
    return [path for path in found if not set(path.parents) & set(found)]


def mirror() -> str:
    """Debian's mirror: as told, or as this machine's own apt has it."""
    if told := os.environ.get("MILLRACE_DEBIAN_MIRROR"):
        return told
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.*")]
    text = "\n".join(path.read_text() for path in lists if path.is_file())
    found = re.search(r"^(?:deb(?: \[.*?\])?|URIs:) (\S+/debian)/?(?:\s|$)", text, re.M)
    if found is None:
        sys.exit("error: no Debian mirror is known here -> set MILLRACE_DEBIAN_MIRROR to one's URL")
    return found[1]


def build_root(root: Path, log: Path) -> None:
    """A Debian 12 with README's programs and one ordinary user; kept if it is there already."""
    done = root / "etc" / "millrace-bare-machine"
    if not done.exists():
        print(f"building a Debian 12 in {root}", flush=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm"]
        with log.open("wb") as file:
            subprocess.run([*command, root, mirror()], stdout=file, stderr=file, check=True)
        uid, home = USERS["user"]
        command = ["useradd", "-u", str(uid), "-d", f"/{home}", "-s", "/bin/bash", "user"]
        subprocess.run(["chroot", root, *command], check=True)
        done.touch()
    for name in ("resolv.conf", "hosts"):
        shutil.copyfile(f"/etc/{name}", root / "etc" / name)


def fresh_clone(root: Path, user: str) -> None:
    """A home with a clone of HEAD and nothing else but packages that were fetched before."""
    uid, home = str(USERS[user][0]), root / USERS[user][1]
    cache, aside = home / ".cache" / "uv", root / "var" / f"uv-{user}"
    if cache.exists():
        cache.rename(aside)
    for folder in (home, root / "tmp", root / "var" / "tmp"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    home.chmod(0o700)
    if aside.exists():
        cache.parent.mkdir()
        aside.rename(cache)
    clone = ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(home / "millrace")]
    subprocess.run(clone, check=True)
    subprocess.run(["chown", "-R", f"{uid}:{uid}", str(home)], check=True)


def run_command(root: Path, user: str, busy: int, name: str, log: Path) -> tuple[str, int]:
    """One `make` target in the root, as its user; how it ended and after how many seconds."""
    settings = index_settings()
    binds = []
    for path in folders_and_files(settings):
        inside = root / path.relative_to("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.mkdir(exist_ok=True) if path.is_dir() else inside.touch()
        binds.append(f"mount -o bind,ro {shlex.quote(str(path))} .{shlex.quote(str(path))}")
    number, folder = USERS[user]
    script = _ENTER.format(
        root=shlex.quote(str(root)),
        binds="\n".join(binds),
        burners=" ".join(map(str, range(busy))),
        open_files=SOFT_OPEN_FILES,
        uid=number,
        command=f"make {name}",
    )
    own = {"HOME": f"/{folder}", "USER": user, "LOGNAME": user, "SHELL": "/bin/bash"}
    paths = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM": "dumb"}
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--ipc", "--fork"]
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--kill-child=KILL", "sh", "-c", script],
            env={**settings, **own, **paths},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            status = process.wait(COMMANDS[name])
            ending = "passed" if status == 0 else f"failed ({status})"
        except subprocess.TimeoutExpired:
            ending = "failed (no end)"
        finally:
            process.kill()
            process.wait()
    return ending + counts(log.read_text(errors="replace")), round(time.monotonic() - began)


def counts(output: str) -> str:
    """What pytest's last lines say, added up."""
    found: dict[str, int] = {}
    for line in re.findall(
        r"^.*\d (?:passed|failed|errors?|skipped)\b.* in [\d.]+s.*$", output, re.M
    ):
        for number, kind in _COUNTS.findall(line):
            found[kind] = found.get(kind, 0) + int(number)
    return "".join(f", {number:,} {kind}" for kind, number in found.items())


def table(record: Mapping[str, Any]) -> str:
    """The runs as docs/installing.md shows them."""
    lines = ["| user | programs that burn a core | commit | `make demo` | `make test` |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for run in record["runs"]:
        cells = [run["user"], str(run["busy"]), f"`{run['commit']}`, {run['date']}"]
        for name in COMMANDS:
            ending, seconds = run["results"].get(name, ("not tried", 0))
            cells.append(f"{ending}, {seconds:,} s" if seconds else ending)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"On {record['cores']} cores ({record['machine']}).", ""])


def page(text: str, record: Mapping[str, Any]) -> str:
    """docs/installing.md with the table of this record."""
    return TABLE.sub(lambda mark: mark[1] + table(record) + mark[2], text)


def joined(kept: Mapping[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """This record with runs of the kept one that it did not repeat, if the machine is the same."""
    if any(kept.get(name) != record[name] for name in ("cores", "machine")):
        return record

    def kind(run: Mapping[str, Any]) -> tuple[str, int]:
        return run["user"], run["busy"]

    repeated = {kind(run) for run in record["runs"]}
    others = [run for run in kept["runs"] if kind(run) not in repeated]
    return {**record, "runs": [*others, *record["runs"]]}


def complaint() -> str:
    """What is missing to run this, with its fix; empty: nothing."""
    if os.geteuid() != 0:
        return "it needs root, to make a Debian and enter it -> sudo make bare-machine"
    programs = ("debootstrap", "unshare", "pivot_root", "setpriv", "chroot", "git")
    missing = [name for name in programs if shutil.which(name) is None]
    fix = "apt-get install debootstrap util-linux git"
    return f"{', '.join(missing)} missing -> {fix}" if missing else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="root,user", help="of root and user (root,user)")
    rounds = "rounds, each with so many processes that burn a core (0,2,2)"
    parser.add_argument("--busy", default="0,2,2", help=rounds)
    parser.add_argument("--times", type=int, default=1, help="how often all rounds are done (1)")
    parser.add_argument("--only", choices=COMMANDS, help="one of the two commands")
    parser.add_argument("--root", type=Path, help="folder of the Debian; built if it is not there")
    parser.add_argument("--keep", action="store_true", help="leave the Debian where it was built")
    parser.add_argument("--record", action="store_true", help="write the record and docs")
    given = parser.parse_args()
    given.users, given.busy = given.users.split(","), [int(one) for one in given.busy.split(",")]
    if unknown := set(given.users) - set(USERS):
        parser.error(f"--users: {', '.join(unknown)} -> give root, user or both")
    return given


def main() -> int:
    """Build, run, say, and keep; 1 if a command failed."""
    given = _arguments()
    if problem := complaint():
        print(f"error: {problem}")
        return 2
    began = datetime.now(UTC)
    logs = REPOSITORY / "build" / "bare-machine" / f"{began:%Y%m%d-%H%M%S}"
    logs.mkdir(parents=True)
    root = (given.root or Path(tempfile.mkdtemp(prefix="millrace-debian-"))).resolve()
    runs: list[dict[str, Any]] = []
    commit = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    at = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    record = {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "runs": runs,
    }
    print(f"logs: {logs}", flush=True)
    try:
        build_root(root, logs / "debootstrap.log")
        for busy in given.busy * given.times:
            for user in given.users:
                results: dict[str, tuple[str, int]] = {}
                which = {"commit": at, "date": f"{began:%Y-%m-%d}", "user": user, "busy": busy}
                runs.append({**which, "results": results})
                fresh_clone(root, user)
                for name in [given.only] if given.only else COMMANDS:
                    log = logs / f"{len(runs)}-{user}-busy{busy}-{name}.log"
                    results[name] = run_command(root, user, busy, name, log)
                    print(f"{log.stem}: {results[name][0]}, {results[name][1]} s", flush=True)
    finally:
        if not (given.keep or given.root):
            shutil.rmtree(root, ignore_errors=True)
    print(table(record))
    text = json.dumps(record, indent=1) + "\n"
    (logs / "record.json").write_text(text, encoding="utf-8")
    if given.record:
        kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        record = joined(kept, record)
        text = json.dumps(record, indent=1) + "\n"
        RECORD.write_text(text, encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    endings = [ending for run in runs for ending, _ in run["results"].values()]
    return 0 if all(ending.startswith("passed") for ending in endings) else 1


if __name__ == "__main__":
    sys.exit(main())
