"""Which `bwrap` is taken, and that none is that somebody else could have put there."""

import os
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from services.protocol.errors import InvalidInput
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation import bubblewrap
from services.reward_service.isolation.bubblewrap import PACKAGE, Bubblewrap, NoBubblewrap
from services.reward_service.isolation.jail import _namespace_flags
from services.reward_service.sandbox.sandbox import Sandbox

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH; empty."""
    folder = tmp_path / "path"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the installed package, which is found in its place."""
    installed = metadata.distribution(PACKAGE)
    folder = tmp_path / "site-packages"
    for name in {file.parts[0] for file in installed.files or ()}:
        shutil.copytree(str(installed.locate_file(name)), folder / name)
    (facts,) = folder.glob("*.dist-info")
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.Distribution.at(facts))
    return folder


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)


def _install(folder: Path, says: str) -> str:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("machine", "wanted"), [("x86_64", True), ("aarch64", True), ("riscv64", False)]
)
def test_the_package_is_one_release_and_asked_for_where_it_has_a_wheel(
    machine: str, wanted: bool
) -> None:
    pinned = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    (asked,) = (one for one in map(Requirement, pinned) if one.name == PACKAGE)
    assert str(asked.specifier).startswith("==")
    assert asked.marker is not None
    assert asked.marker.evaluate({"sys_platform": "linux", "platform_machine": machine}) is wanted
    assert not asked.marker.evaluate({"sys_platform": "darwin", "platform_machine": machine})


def test_without_a_system_bwrap_the_packaged_one_is_taken(path: Path) -> None:
    found = Bubblewrap.here()
    assert found.packaged
    assert found.version >= (0, 8)
    assert found.disables_user_namespaces
    assert not found.rejected
    assert f"of {PACKAGE}" in str(found)


def test_a_system_bwrap_that_is_new_enough_comes_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "_root_owned", str)
    program = _install(path, "bubblewrap 0.6.1")
    found = Bubblewrap.here()
    assert (found.path, found.version, found.packaged) == (program, (0, 6, 1), False)
    assert not found.disables_user_namespaces
    assert "0.6.1 of the system" in str(found)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("bubblewrap 0.4.1", "is 0.4.1, older than 0.5"),
        ("usage: bwrap", "does not run: usage"),
        ("", "does not run"),
    ],
)
def test_a_system_bwrap_that_is_no_good_is_passed_over_and_it_is_said_why(
    says: str, why: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "_root_owned", str)
    _install(path, says)
    found = Bubblewrap.here()
    assert found.packaged
    assert why in found.rejected
    assert why in str(found)


def test_a_bwrap_that_others_could_have_put_there_is_never_run(path: Path) -> None:
    program = Path(_install(path, f"bubblewrap 9.9'; touch {path / 'ran'}; echo '"))
    program.chmod(0o777)
    found = Bubblewrap.here()
    assert found.packaged
    assert f"not only root can change {program}" in found.rejected
    program.chmod(0o755)
    path.chmod(0o777)
    assert "not only root can change" in Bubblewrap.here().rejected
    assert not (path / "ran").exists()


def test_a_program_of_the_system_is_root_owned() -> None:
    program = shutil.which("env", path="/usr/bin")
    assert program is not None
    assert bubblewrap._root_owned(program) == str(Path(program).resolve())


@pytest.mark.parametrize("pattern", ["*/_bin/bwrap", "*.libs/libcap*"])
def test_a_packaged_bwrap_is_refused_once_it_or_its_library_has_changed(
    pattern: str, path: Path, copy: Path
) -> None:
    assert Bubblewrap.here().path.startswith(str(copy)), "as it was installed it is taken"
    (file,) = copy.glob(pattern)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(NoBubblewrap, match=f"not as it was installed: .*{file.name}"):
        Bubblewrap.here()
    file.unlink()
    with pytest.raises(NoBubblewrap, match="cannot be read"):
        Bubblewrap.here()


def test_a_package_without_an_executable_is_named(path: Path, copy: Path) -> None:
    (record,) = copy.glob("*.dist-info/RECORD")
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if "/_bin/" not in line))
    with pytest.raises(NoBubblewrap, match="came without an executable"):
        Bubblewrap.here()


@pytest.mark.usefixtures("path", "no_package")
async def test_without_any_the_service_refuses_tier_a_with_both_ways_to_get_one() -> None:
    with pytest.raises(InvalidInput, match="require_tier") as refusal:
        await Sandbox(RewardServiceConfig(require_tier="A")).start()
    for said in (f"pip install {PACKAGE}", "no bwrap on the PATH", f"{PACKAGE} is not installed"):
        assert said in refusal.value.fix


@pytest.mark.usefixtures("path", "no_package")
async def test_without_any_the_service_holds_answers_in_tier_b() -> None:
    sandbox = Sandbox(RewardServiceConfig(slots=1))
    try:
        await sandbox.start()
        assert sandbox.tier == "B"
    finally:
        sandbox.close()


@pytest.mark.parametrize(("mounted", "asked"), [(os.ST_RDONLY, False), (0, True)])
def test_where_sysctls_are_read_only_as_in_containers_seccomp_denies_user_namespaces(
    monkeypatch: pytest.MonkeyPatch, mounted: int, asked: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=mounted))
    flags = _namespace_flags(Bubblewrap(path="/usr/bin/bwrap", version=(0, 11, 0), packaged=False))
    assert "--unshare-user" in flags
    assert ("--disable-userns" in flags) == asked
