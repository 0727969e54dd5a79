"""What holds for every test."""

import gc
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.mounts import pretend_mounts

if TYPE_CHECKING:
    from tests.router.vllm_process import Urls

pytest_plugins = ["tests.not_tried"]

# Nearly half of the time of importing all tests went into looking for garbage in what was imported.
gc.disable()

# Models of tests are tiny, and several processes share the cores: with more threads most time
# goes to waiting for one that has no core. Before anything imports torch.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests that were started in the background of a shell ignore Ctrl-C, and so would every
# command that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The same cases each time, and none is too slow on busy cores: a run says something of the code,
# and nothing of luck. For others: pytest --hypothesis-profile=default
settings.register_profile("same cases", derandomize=True, deadline=None)
settings.load_profile("same cases")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else Triton prints every function of its own as leaked when Python ends


@pytest.fixture(autouse=True)
def levels_of_logs() -> Iterator[None]:
    """A command makes services quieter for its process, and many tests share one."""
    before = {one.name: one.level for one in services_logs()}
    yield
    for one in services_logs():
        level = before.get(one.name, logging.INFO)
        if one.level != level:  # setting it empties the caches of all loggers
            one.setLevel(level)


def services_logs() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict
    named = [one for name, one in known.items() if name.startswith("millrace.")]
    return [one for one in named if isinstance(one, logging.Logger)]


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Urls"]:
    """One engine behind two of vLLM's own applications, without and with parsers.

    One for everybody: it takes longer to start than most of what is asked of it.
    """
    from tests.router.tiny_model import make_model
    from tests.router.vllm_process import running

    folder = tmp_path_factory.mktemp("vllm")
    make_model(folder / "model")
    with running(folder, version=3) as urls:
        yield urls


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for four mebibytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("no mount")
    if mounted.returncode:
        pytest.skip(f"only who may mount has a disk to fill: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        # Lazily: a test that failed may have left a file open.
        subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=120)


@pytest.fixture(params=["ext4", "nfs4"])
def each_file_system(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The kind of file system that every folder is said to be on: a local one, one of a network."""
    kind = str(request.param)
    pretend_mounts(monkeypatch, tmp_path_factory.mktemp("mounts") / "mountinfo", f"/ {kind} rw")
    return kind
