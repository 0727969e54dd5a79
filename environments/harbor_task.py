"""A folder of Harbor's task format, read as far as a workspace can play it.

https://www.harborframework.com/docs/tasks; the fields are those of `task.toml` 1.4. What a
workspace cannot give is refused, and so is each field that is not known here.
"""

import hashlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any, NoReturn

from services.protocol.errors import InvalidInput

IMAGES = ("ubuntu", "debian", "python")
"""Images whose programs a workspace is taken to have: those of its node."""

_PLAYED = {
    "": "schema_version version source metadata task agent verifier environment solution artifacts",
    "task": "name version description authors keywords",
    "agent": "timeout_sec network_mode",
    "verifier": "timeout_sec env network_mode environment_mode",
    "environment": "build_timeout_sec cpus memory memory_mb storage storage_mb os env workdir "
    "network_mode allow_internet",
    "solution": "env",
}
_CONTAINER = "A workspace has none: the task needs a container, so skip it (--skip-unfit)"
_NO_NETWORK = (
    'A workspace has none. If the task and its tests need none, write network_mode = "no-network", '
    "or say --offline"
)
_FETCHES = re.compile(
    r"^[^#\n]*\b(apt(?:-get)?|curl|wget|uvx|(?:pip3?|npm) install)\b", re.MULTILINE
)
_NO_DOWNLOAD = "A workspace has no network: have it on the nodes, and take the line out, or skip it"
_TAKEN = {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"}
_TAKEN |= {"tests", "tmp", "work"}
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
_LONGEST_S = 3600.0  # of a call in a workspace
_VERIFIER_S = 600.0
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_IGNORED = {"CMD", "LABEL", "EXPOSE", "MAINTAINER"}  # Harbor has a command of its own


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    """One task.

    Attributes:
        folder: of the task.
        instruction: what the model is told, without canary lines.
        workdir: absolute folder in which commands and tests start.
        files: of the environment, by their absolute place.
        env: environment variables of the model's commands and the tests.
        verifier_env: those of the tests, besides.
        solution_env: those of the reference solution, besides.
        agent_s: seconds after which the model gets no more turn; None: no limit.
        verifier_s: longest run of the tests, seconds.
        memory_mb: of the workspace; None: the task does not say.
        disk_mb: likewise.
    """

    folder: Path
    instruction: str
    workdir: str
    files: Mapping[str, Path]
    env: Mapping[str, str]
    verifier_env: Mapping[str, str]
    solution_env: Mapping[str, str]
    agent_s: float | None
    verifier_s: float
    memory_mb: int | None
    disk_mb: int | None

    @classmethod
    def read(
        cls, folder: Path, *, images: Sequence[str] | None = None, offline: bool = True
    ) -> "HarborTask":
        """Read a task.

        Args:
            folder: has `task.toml`, `instruction.md`, `environment` and `tests`.
            images: that the task may begin from; None: any.
            offline: the task needs no network, though it may have one.

        Raises:
            InvalidInput: it needs more than a workspace, or is no task.
        """
        reading = _Reading(folder, images)
        config = reading.config(offline=offline)
        environment, verifier = config["environment"], config["verifier"]
        reading.check_files()
        workdir, env, files = reading.dockerfile()
        if fetches := _FETCHES.search(reading.text("tests/test.sh")):
            reading.refuse("tests/test.sh", fetches[1], _NO_DOWNLOAD)
        workdir = environment.get("workdir") or workdir
        reading.check_place("[environment] workdir", workdir)
        instruction = reading.text("instruction.md").split("\n")
        shown = dropwhile(lambda line: _CANARY.fullmatch(line.strip()), instruction)
        return cls(
            folder=folder,
            instruction="\n".join(dropwhile(lambda line: not line.strip(), shown)),
            workdir=workdir,
            files=files,
            env=env | environment.get("env", {}),
            verifier_env=verifier.get("env", {}),
            solution_env=config["solution"].get("env", {}),
            agent_s=config["agent"].get("timeout_sec"),
            verifier_s=verifier.get("timeout_sec", _VERIFIER_S),
            memory_mb=environment.get("memory_mb") or reading.size(environment, "memory"),
            disk_mb=environment.get("storage_mb") or reading.size(environment, "storage"),
        )

    @property
    def root_folders(self) -> list[str]:
        """Folders of the workspace that are to be found at the root."""
        own = {place.split("/")[1] for place in (self.workdir, *self.files)}
        return sorted(own | {"logs", "tests", "solution"})

    def digest(self) -> str:
        """SHA-256 of all its files, with their names and whether they can be executed."""
        whole = hashlib.sha256()
        for name, path in sorted(files_below(self.folder).items()):
            executable = bool(path.stat().st_mode & 0o100)
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"{name}\0{executable}\0{content}\n".encode())
        return whole.hexdigest()


def files_below(folder: Path) -> dict[str, Path]:
    """Files of a folder by their relative path; bytecode and caches of Python are left out."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {n: path for n, path in found.items() if path.is_file() and "__pycache__" not in n}


class _Reading:
    """Reads the files of one task; what it refuses, it names."""

    def __init__(self, folder: Path, images: Sequence[str] | None) -> None:
        self._folder, self._images = folder, images

    def refuse(self, field: str, value: object, fix: str) -> NoReturn:
        raise InvalidInput(f"{self._folder.name}: {field}", value, f"{fix}.")

    def text(self, name: str) -> str:
        """A text file of the task."""
        path = self._folder / name
        if not path.is_file():
            self.refuse(name, "(missing)", "Each task has one")
        return path.read_text(encoding="utf-8")

    def config(self, *, offline: bool) -> dict[str, Any]:
        """`task.toml`, each of whose fields is played."""
        try:
            config = tomllib.loads(self.text("task.toml"))
        except tomllib.TOMLDecodeError as error:
            self.refuse("task.toml", str(error), "Write it as TOML")
        for section, names in _PLAYED.items():
            fields = config.setdefault(section, {}) if section else config
            for name, value in fields.items():
                if name not in names.split() and value not in (None, False, 0, "", [], {}):
                    self.refuse(f"[{section}] {name}".removeprefix("[] "), value, _CONTAINER)
        environment, verifier = config["environment"], config["verifier"]
        for section in ("environment", "verifier", "solution"):
            for name, value in config[section].get("env", {}).items():
                if "$" in str(value):
                    fix = "Write the value: variables of the host stay there"
                    self.refuse(f"[{section}] env.{name}", value, fix)
        if (kind := environment.get("os", "linux")).lower() != "linux":
            self.refuse("[environment] os", kind, "Workspaces are Linux")
        if (mode := verifier.get("environment_mode", "shared")) != "shared":
            fix = 'Tests run in the workspace of the episode: "shared"'
            self.refuse("[verifier] environment_mode", mode, fix)
        if not 0 < verifier.get("timeout_sec", _VERIFIER_S) <= _LONGEST_S:
            fix = f"Above 0, and at most {_LONGEST_S:g}"
            self.refuse("[verifier] timeout_sec", verifier["timeout_sec"], fix)
        without = environment.get("allow_internet") is False
        mode = environment.get("network_mode") or ("no-network" if without else "public")
        for section in (config["agent"], verifier):
            effective = section.get("network_mode", mode)
            if effective != "no-network" and not (offline and effective == "public"):
                self.refuse("[environment] network_mode", effective, _NO_NETWORK)
        return config

    def size(self, environment: Mapping[str, Any], field: str) -> int | None:
        """A size of the older form, such as `2G`, in MiB."""
        text = environment.get(field)
        if not text:
            return None
        found = re.fullmatch(r"([\d.]+)\s*([KMG])", str(text).strip().upper())
        if found is None:
            self.refuse(f"[environment] {field}", text, 'Write it as "2G", "512M" or "64K"')
        return max(1, int(float(found[1]) * _MB[found[2]]))

    def check_place(self, field: str, place: str) -> None:
        """Look whether a workspace can have something there."""
        if not place.startswith("/") or place == "/" or place.split("/")[1] in _TAKEN:
            fix = "Name a folder of the task's own, such as /app: others have their use"
            self.refuse(field, place, fix)

    def check_files(self) -> None:
        """Look whether all are plain, and none is about others."""
        for path in self._folder.rglob("*"):
            name = path.relative_to(self._folder).as_posix()
            if path.is_symlink():
                self.refuse(name, "(a link)", "Put what it leads to in its place")
            if path.name in (".harborignore", ".dockerignore"):
                self.refuse(name, "(is there)", "Remove it, and the files that it names")
            if re.fullmatch(r"environment/.*compose.*\.ya?ml", name):
                self.refuse(name, "(is there)", _CONTAINER)

    def dockerfile(self) -> tuple[str, dict[str, str], dict[str, Path]]:
        """Working folder, variables and files of the image."""
        folder = self._folder / "environment"
        workdir, env, files = "/", dict[str, str](), dict[str, Path]()
        text = re.sub(r"\\\s*\n", " ", self.text("environment/Dockerfile"))
        lines = [line.strip() for line in text.splitlines()]
        for line in (line for line in lines if line and not line.startswith("#")):
            word, _, rest = line.partition(" ")
            words = _words(rest)
            match word.upper():
                case "FROM" if len(words) == 1 and self._known(words[0]):
                    pass
                case "WORKDIR" if len(words) == 1 and "$" not in rest:
                    workdir = normpath(join(workdir, words[0]))
                case "ENV" if words and "$" not in rest and all("=" in one for one in words):
                    env |= dict(one.split("=", 1) for one in words)
                case "COPY" if len(words) > 1 and not re.search(r"\$|<<|^--|^\[|\s--", rest):
                    files |= self._copied(folder, words, workdir)
                case other if other not in _IGNORED:
                    fix = f"FROM {', '.join(self._images or IMAGES)}, WORKDIR, ENV and COPY alone"
                    fix += " can be played: name other images by --image, or skip the task"
                    self.refuse("environment/Dockerfile", line[:200], fix)
        return workdir, env, files

    def _known(self, image: str) -> bool:
        name = re.sub(r"(:[^/]*)?(@.*)?$", "", image)
        name = name.removeprefix("docker.io/").removeprefix("library/")
        return self._images is None or name in self._images or image in self._images

    def _copied(self, folder: Path, words: Sequence[str], workdir: str) -> dict[str, Path]:
        """Files of a `COPY` by their absolute place."""
        *sources, to = words
        target = normpath(join(workdir, to))
        into = to.endswith("/") or len(sources) > 1 or target in (workdir, "/")
        files: dict[str, Path] = {}
        for source in sources:
            source = normpath(source).lstrip("/")
            found = [folder] if source in (".", "") else sorted(folder.glob(source))
            if ".." in source.split("/"):
                found = []
            if not found:
                self.refuse("environment/Dockerfile", f"COPY {source}", "There is no such file")
            for path in found:
                place = join(target, path.name) if into and path.is_file() else target
                below = {"": path} if path.is_file() else files_below(path)
                files |= {join(place, name).rstrip("/"): one for name, one in below.items()}
        for place in files:
            self.check_place("environment/Dockerfile: COPY", dirname(place))
        return files


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end: an instruction without words is refused
        return []


def tasks_of(folder: Path) -> Iterator[Path]:
    """The folders below `folder` that have a task, by name.

    Raises:
        InvalidInput: there are none.
    """
    found = sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found:
        raise InvalidInput("folder", str(folder), "It has no FOLDER/task.toml.")
    yield from found
