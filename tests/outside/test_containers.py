"""`millrace agent-run --image` plays episodes in real containers, and leaves none behind."""

import asyncio
import io
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace_tools.agents.containers import network_of, working_runtime
from services.orchestrator.rollout.rollout import RolloutFailed
from services.protocol.errors import InvalidInput
from tests.outside.conftest import request, sampler
from tests.outside.test_agent_run import end_of, run, start, until_called
from tests.router.conftest import Fault

PYTHON = f"{sys.base_prefix}/bin/python3"
AGENT = """
import json, os, sys, urllib.request
assert sys.argv[1] == os.environ["MILLRACE_TASK"] == "/millrace/task.json"
assert "OF_THE_TEST" not in os.environ
for limit in ("memory/memory.limit_in_bytes", "memory.max"):
    if os.path.exists("/sys/fs/cgroup/" + limit):
        print("memory", open("/sys/fs/cgroup/" + limit).read())
body = {"model": "any", "messages": json.load(open(sys.argv[1]))["messages"]}
head = {"content-type": "application/json"}
head["authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
asked = urllib.request.Request(url, json.dumps(body).encode(), head)
said = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
json.dump({"reward": float("words" in said)}, open(os.environ["MILLRACE_RESULT"], "w"))
"""
PROGRAM = (PYTHON, "-c", AGENT, "{task}")
MEMORY = 512 << 20
ONE_VERSION = 'umount /sys/fs/cgroup/unified; exec "$@"'
"""Of control groups: crun refuses a machine that mounts both."""
_RUN_S = 120


@dataclass(frozen=True)
class Images:
    """A runtime, and an image of empty folders in which this machine's programs can be mounted."""

    runtime: str
    image: str
    mounts: Sequence[str]

    def do(self, *words: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [self.runtime, *words]
        return subprocess.run(command, input=given, capture_output=True, timeout=_RUN_S)

    def there(self) -> list[str]:
        """Names of all containers of the image."""
        listed = self.do("ps", "--all", f"--filter=ancestor={self.image}", "--format={{.Names}}")
        return listed.stdout.decode().split()

    @property
    def options(self) -> dict[str, str | Sequence[str]]:
        """Those of `agent-run`."""
        return {"image": self.image, "memory": str(MEMORY), "run_arg": self.mounts}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    with pytest.MonkeyPatch.context() as environment:
        _own_store(tmp_path_factory.mktemp("store"), environment)
        environment.setenv("OF_THE_TEST", "no program in a container sees it")
        yield from _made_images()


def _made_images() -> Iterator[Images]:
    image = f"localhost/millrace-test-{secrets.token_hex(4)}"
    try:
        runtime = working_runtime(image)
    except InvalidInput as missing:
        pytest.skip(f"no containers here: {missing.fix}")
    folders = {"/usr", sys.base_prefix}
    made = Images(runtime, image, [f"--volume={one}:{one}:ro" for one in sorted(folders)])
    try:
        made.do("import", "-", image, given=_empty_root())
        limits = ("--network=host", f"--memory={MEMORY}", "--pids-limit=64")
        tried = made.do("run", "--rm", *limits, *made.mounts, image, PYTHON, "-c", "")
        if tried.returncode:
            pytest.skip(f"no containers here: {tried.stderr.decode().strip()}")
        yield made
    finally:
        for name in made.there():
            made.do("rm", "--force", name)
        made.do("rmi", "--force", image)


def _own_store(folder: Path, environment: pytest.MonkeyPatch) -> None:
    """Have podman use a store of the test's, limits that it may set, and one kind of groups."""
    files, processes = (
        resource.getrlimit(one)[1] for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    limits = f'["nofile={files}:{files}", "nproc={min(processes, 32768)}:{min(processes, 32768)}"]'
    store = f'driver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    settings = {
        "CONTAINERS_CONF": f"[containers]\ndefault_ulimits = {limits}\n",
        "CONTAINERS_STORAGE_CONF": f"[storage]\n{store}",
    }
    for name, text in settings.items():
        (folder / name).write_text(text)
        environment.setenv(name, str(folder / name))
    podman = shutil.which("podman")
    if podman and os.geteuid() == 0 and Path("/sys/fs/cgroup/unified").exists():
        script = folder / "bin" / "podman"
        script.parent.mkdir()
        enter = "exec unshare --mount --propagation private"
        script.write_text(f"#!/bin/sh\n{enter} sh -c '{ONE_VERSION}' sh {podman} \"$@\"\n")
        script.chmod(0o755)
        environment.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")


def _empty_root() -> bytes:
    """An archive of folders, and of links where this machine has some."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("usr", "proc", "sys", "dev", "tmp", "etc", "run"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name in ("bin", "lib", "lib64"):
            if (path := Path("/", name)).is_symlink():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(path)
                archive.addfile(link)
    return packed.getvalue()


async def test_an_episode_is_played_in_a_container_with_limits(cluster, images, tmp_path):
    arrived: list = []
    folder = tmp_path / "logs"
    async with sampler(cluster) as rollouts:
        command = asyncio.create_task(
            run(cluster, folder, *PROGRAM, episodes="2", **images.options)
        )
        await rollouts.sample(request(), lambda *one: arrived.append(one))
        status, written = await command
    assert status == 0, written
    assert "2 finished" in written
    assert [score.reward for *_, score in arrived] == [1.0, 1.0]
    assert images.there() == []
    for episode in folder.iterdir():
        assert f"memory {MEMORY}" in (episode / "stdout").read_text()
        assert (episode / "shared" / "result.json").exists()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('no such tool')", "exit status 1: no such tool"),
        (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(999)",
            "not ended after 20 s",
        ),
        ("import os; os.symlink('/etc/passwd', '/millrace/result.json')", "cannot be used"),
        ("import os; os.mkfifo('/millrace/result.json')", "cannot be used: it is no file"),
    ],
    ids=["fails", "hangs", "links", "pipes"],
)
async def test_a_program_that_fails_leaves_no_container(cluster, images, tmp_path, code, why):
    async with sampler(cluster) as rollouts:
        timeout = "20" if "not ended" in why else "600"
        options = {**images.options, "timeout": timeout, "episodes": "1"}
        command = asyncio.create_task(
            run(cluster, tmp_path / "logs", PYTHON, "-c", code, **options)
        )
        with pytest.raises(RolloutFailed) as failed:
            await rollouts.sample(request(n=1), lambda *_: None)
        status, written = await command
    assert why in str(failed.value)
    assert (status, "1 failed" in written) == (0, True)
    assert images.there() == []


async def test_an_agent_run_that_is_told_to_end_removes_its_containers(cluster, images, tmp_path):
    for replica in cluster.replicas:
        replica.always = Fault("stall")
    async with sampler(cluster) as rollouts:
        command = await start(cluster, tmp_path / "logs", *PROGRAM, **images.options)
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *_: None))
        await until_called(cluster)
        assert len(images.there()) == 1
        command.send_signal(signal.SIGTERM)
        status, _ = await end_of(command)
        with pytest.raises(RolloutFailed, match="agent-run was ended"):
            await sampling
    assert status == 128 + signal.SIGTERM
    assert images.there() == []


async def test_containers_of_a_killed_agent_run_are_removed_by_the_next(cluster, images, tmp_path):
    for replica in cluster.replicas:
        replica.always = Fault("stall")
    async with sampler(cluster) as rollouts:
        command = await start(cluster, tmp_path / "logs", *PROGRAM, **images.options)
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *_: None))
        await until_called(cluster)
        beside = await run(cluster, tmp_path / "beside", "true", idle="1", **images.options)
        assert beside == (0, "episodes: none\n")
        assert len(images.there()) == 1
        command.kill()
        await command.wait()
        assert len(images.there()) == 1
        _, written = await run(cluster, tmp_path / "next", "true", idle="1", **images.options)
        assert "removed 1 containers" in written
        assert images.there() == []
        sampling.cancel()


async def test_what_no_container_can_be_made_of_is_named(cluster, images, tmp_path):
    for options, why in [
        ({"image": f"{images.image}-none"}, "Build it, or see why"),
        ({"image": images.image, "memory": "much"}, "No container of it can be made"),
    ]:
        status, written = await run(cluster, tmp_path / "logs", "true", **options)
        assert status == 2
        assert why in written
    assert images.there() == []


def test_containers_of_this_machines_router_are_in_its_network() -> None:
    assert network_of("http://127.0.0.1:8000", None) == ["--network=host"]
    assert network_of("http://localhost:8000", "host") == ["--network=host"]
    assert network_of("http://router.example:8000", None) == []
    assert network_of("http://10.0.0.7:8000", "agents") == ["--network=agents"]
    with pytest.raises(InvalidInput, match="say with --container-url"):
        network_of("http://[::1]:8000", "agents")


async def test_without_docker_and_podman_it_says_so(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, written = await run(cluster, tmp_path / "logs", "true", image="agent")
    assert status == 2
    assert "Install docker or podman; no docker; no podman" in written
