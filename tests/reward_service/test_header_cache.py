"""Precompiled headers that are kept: used if they are this user's own and unchanged."""

import os
from pathlib import Path

import pytest

from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.jail import Jail
from services.reward_service.languages import languages
from services.reward_service.sandbox.compiler import Compiler
from services.reward_service.sandbox.header_cache import HeaderCache

NAME, CONTENT = "a" * 64, b"precompiled"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "headers"
    HeaderCache(str(folder)).put(NAME, CONTENT)
    return folder


def kept(folder: Path) -> bytes | None:
    return HeaderCache(str(folder)).get(NAME)


def test_a_header_comes_back_and_is_closed_to_others(folder: Path) -> None:
    assert kept(folder) == CONTENT
    assert HeaderCache(str(folder)).get("b" * 64) is None
    assert (folder.stat().st_mode | (folder / NAME).stat().st_mode) & 0o077 == 0


def test_a_header_that_was_changed_is_not_used(folder: Path) -> None:
    file = folder / NAME
    file.write_bytes(file.read_bytes() + b"x")
    assert kept(folder) is None
    file.write_bytes(b"")
    assert kept(folder) is None


def test_a_header_that_others_could_change_is_not_used(folder: Path) -> None:
    (folder / NAME).chmod(0o622)
    assert kept(folder) is None
    (folder / NAME).chmod(0o600)
    folder.chmod(0o777)
    assert kept(folder) is None
    HeaderCache(str(folder)).put("b" * 64, CONTENT)
    assert not (folder / ("b" * 64)).exists()


def test_a_link_in_the_place_of_a_header_or_of_the_folder_is_not_used(folder: Path) -> None:
    (folder / "real").write_bytes((folder / NAME).read_bytes())
    (folder / "real").chmod(0o600)
    (folder / NAME).unlink()
    (folder / NAME).symlink_to(folder / "real")
    assert kept(folder) is None
    other = folder.parent / "link"
    other.symlink_to(folder)
    assert HeaderCache(str(other)).get("real") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_header_of_another_user_is_not_used(folder: Path) -> None:
    os.chown(folder / NAME, 65534, 65534)
    assert kept(folder) is None


def test_only_the_newest_headers_are_kept(folder: Path) -> None:
    for number in range(12):
        HeaderCache(str(folder)).put(f"{number:064x}", CONTENT)
    assert len(list(folder.iterdir())) == 8
    assert HeaderCache(str(folder)).get(f"{11:064x}") == CONTENT


async def test_a_compiler_takes_a_kept_header_and_keeps_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = languages()["cpp17"].toolchain
    assert toolchain is not None
    made: list[str] = []

    async def build(_: Compiler, toolchain: object) -> bytes:
        made.append("header")
        return CONTENT

    monkeypatch.setattr(Compiler, "_build_header", build)
    for run in range(2):
        config = RewardServiceConfig(
            header_cache_dir=str(tmp_path / "kept"), toolchain_dir=str(tmp_path / f"{run}")
        )
        folder = await Compiler(config, Jail.here(namespaces=False))._header(toolchain, NAME)
        assert folder is not None
        assert (folder / toolchain.header_output).read_bytes() == CONTENT
    assert made == ["header"]
