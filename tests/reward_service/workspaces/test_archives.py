"""Archives are unpacked within limits, and what would leave the workspace is refused."""

import gzip
import io
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall
from services.reward_service.workspaces.running import files
from services.reward_service.workspaces.workspace import Workspace
from tests.reward_service.workspaces.conftest import Opener, running

pytestmark = pytest.mark.asyncio(loop_scope="session")


def tar(*members: tuple[str, bytes | str, bytes], zipped: bool = False) -> bytes:
    """Members of a name, a content or the target of a link, and tarfile's type."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o750
            if isinstance(content, str):
                member.linkname = content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue()) if zipped else file.getvalue()


def zipped(*members: tuple[str, bytes, int], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Members of a name, a content and a mode."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            archive.writestr(info, content)
    return file.getvalue()


FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
async def test_a_tar_is_unpacked_with_modes_links_and_folders(
    workspace: Workspace, kind: str
) -> None:
    archive = tar(
        ("./a/", b"", FOLDER),
        ("a/run", b"#!/bin/sh\necho ran\n", FILE),
        ("b/c/d", b"deep", FILE),
        ("b/up", "../a/run", LINK),
        ("same", "a/run", HARD),
        zipped=kind == "tar.gz",
    )
    assert await workspace.unpack("into/it", archive, kind) == 5
    result = await workspace.exec(ExecCall(shell="cd into/it; a/run; b/up; ./same; cat b/c/d"))
    assert result.stdout == "ran\nran\nran\ndeep"


async def test_a_zip_is_unpacked_with_modes_and_links(workspace: Workspace) -> None:
    archive = zipped(
        ("a/", b"", 0),
        ("a/run", b"#!/bin/sh\necho ran\n", stat.S_IFREG | 0o755),
        ("b/link", b"../a/run", stat.S_IFLNK | 0o777),
    )
    assert await workspace.unpack(".", archive, "zip") == 3
    assert (await workspace.exec(ExecCall(shell="b/link"))).stdout == "ran\n"


OUTSIDE: dict[str, tuple[str, bytes]] = {
    "dots": ("tar", tar(("../out", b"x", FILE))),
    "dots within": ("tar", tar(("a/../../out", b"x", FILE))),
    "absolute": ("tar", tar(("/tmp/out", b"x", FILE))),
    "a link to the root": ("tar", tar(("l", "/", LINK))),
    "a link up": ("tar", tar(("a/l", "../../..", LINK))),
    "a file through a link": ("tar", tar(("l", ".", LINK), ("l/l2/x", b"x", FILE))),
    "a link of a link": ("tar", tar(("a/l", "..", LINK), ("a/l/m", "..", LINK))),
    "a hard link out": ("tar", tar(("h", "../../etc/passwd", HARD))),
    "a hard link to a link": ("tar", tar(("l", "x", LINK), ("h", "l", HARD))),
    "a character device": ("tar", tar(("d", b"", tarfile.CHRTYPE))),
    "a block device": ("tar", tar(("d", b"", tarfile.BLKTYPE))),
    "a pipe": ("tar", tar(("d", b"", tarfile.FIFOTYPE))),
    "an unknown kind": ("tar", tar(("d", b"", b"Z")).replace(b"Z\0", b"\x99\0")),
    "a long name": ("tar", tar(("x" * 256, b"", FILE))),
    "a deep path": ("tar", tar(("d/" * 65 + "x", b"", FILE))),
    "zip: dots": ("zip", zipped(("../out", b"x", 0))),
    "zip: absolute": ("zip", zipped(("/tmp/out", b"x", 0))),
    "zip: a link out": ("zip", zipped(("l", b"/etc", stat.S_IFLNK | 0o777))),
    "zip: a device": ("zip", zipped(("d", b"", stat.S_IFCHR | 0o666))),
    "nothing": ("tar", b""),
    "no tar": ("tar", b"nothing like it" * 100),
    "no gzip": ("tar.gz", b"nothing like it"),
    "half a gzip": ("tar.gz", tar(("a", bytes(10000), FILE), zipped=True)[:50]),
    "no zip": ("zip", b"nothing like it"),
    "a tar that is cut": ("tar", tar(("a", bytes(10000), FILE))[:3000]),
    "a zip that is cut": ("zip", zipped(("a", bytes(10000), 0))[:-30]),
}


@pytest.mark.parametrize("name", OUTSIDE)
async def test_an_archive_that_no_workspace_may_have_is_refused(
    workspace: Workspace, name: str
) -> None:
    kind, archive = OUTSIDE[name]
    with pytest.raises(InvalidInput):
        await workspace.unpack("into", archive, kind)
    assert running(workspace) == []
    result = await workspace.exec(ExecCall(shell="ls; ls .. | grep out; find . -type b,c,p,s"))
    assert result.stdout in ("into\n", "")


@pytest.mark.parametrize("kind", [FILE, FOLDER, LINK, HARD])
async def test_nothing_of_a_workspaces_own_archive_is_written_through_a_link_in_it(
    workspace: Workspace, kind: bytes
) -> None:
    target = f"{workspace.jail.path}/kept"
    members = [("kept/", b"", FOLDER), ("f", b"x", FILE), ("l", target, LINK)]
    below = "f" if kind is HARD else "/etc" if kind is LINK else b""
    with pytest.raises(InvalidInput):
        await workspace.become(tar(*members, ("l/new", below, kind)), ())
    assert (await workspace.exec(ExecCall(shell="readlink l; ls kept"))).stdout == f"{target}\n"
    with pytest.raises(InvalidInput):
        await workspace.become(tar(("l", b"over the link", FILE)), ())
    assert (await workspace.exec(ExecCall(shell="readlink l"))).stdout == f"{target}\n"


async def test_an_encrypted_zip_is_refused_by_name(workspace: Workspace) -> None:
    archive = bytearray(zipped(("a", b"x", 0)))
    for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        archive[archive.index(header) + at] |= 1
    with pytest.raises(InvalidInput, match="encrypted"):
        await workspace.unpack(".", bytes(archive), "zip")


def bomb_of_zip() -> bytes:
    return zipped(*((f"f{number}", bytes(1 << 20), 0) for number in range(40)))


def lying_zip() -> bytes:
    """Its sizes say 10 bytes."""
    archive = bytearray(zipped(("f", bytes(40 << 20), 0)))
    true = (40 << 20).to_bytes(4, "little")
    while (at := archive.find(true)) >= 0:
        archive[at : at + 4] = (10).to_bytes(4, "little")
    return bytes(archive)


def bomb_of_tar() -> bytes:
    return tar(("f", bytes(40 << 20), FILE), zipped=True)


def endless_gzip() -> bytes:
    """An attribute of 30 MB."""
    member = tarfile.TarInfo("f")
    member.pax_headers = {"comment": "x" * (30 << 20)}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    return gzip.compress(file.getvalue(), 1)


def sparse() -> bytes:
    """A file of a terabyte, all of it a hole."""
    member = tarfile.TarInfo("sparse")
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(1 << 40),
    }
    content = b"0\n".ljust(512, b"\0")
    member.size = len(content)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def many_entries() -> bytes:
    return zipped(*((f"d{number}/", b"", 0) for number in range(101)))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (bomb_of_zip, "zip"),
        (lying_zip, "zip"),
        (bomb_of_tar, "tar.gz"),
        (endless_gzip, "tar.gz"),
        (sparse, "tar"),
        (many_entries, "zip"),
    ],
)
async def test_an_archive_that_unpacks_too_large_is_stopped(
    opened: Opener, make: Callable[[], bytes], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 100)
    workspace = await opened(disk_mb=8)
    with pytest.raises(InvalidInput):
        await workspace.unpack(".", make(), kind)
    assert workspace.disk_used <= (workspace.spec.disk_mb << 20) + (1 << 20)
    assert running(workspace) == []
    await workspace.remove(".")
    assert (await workspace.exec(ExecCall(shell="echo on > f; cat f"))).stdout == "on\n"


async def test_broken_archives_of_every_kind_are_refused_or_unpacked(workspace: Workspace) -> None:
    chance = random.Random(19)
    members = [(f"m{number}", chance.randbytes(300), FILE) for number in range(5)]
    good = {
        "tar": tar(*members),
        "tar.gz": tar(*members, zipped=True),
        "zip": zipped(*((name, content, 0) for name, content, _ in members)),
    }
    for number in range(60):
        kind = ("tar", "tar.gz", "zip")[number % 3]
        archive = bytearray(good[kind])
        for _ in range(chance.randrange(1, 20)):
            archive[chance.randrange(len(archive))] = chance.randrange(256)
        try:
            await workspace.unpack("x", bytes(archive), kind)
        except InvalidInput:
            continue
    assert (await workspace.exec(ExecCall(shell="echo on"))).stdout == "on\n"


async def test_an_archive_of_a_folder_unpacks_to_the_same_files(opened: Opener) -> None:
    one, other = await opened(), await opened()
    line = "mkdir -p a/b; echo 1 > a/b/c; ln -s b/c a/l; mkfifo a/p; chmod 751 a/b/c; touch .tmp/t"
    await one.exec(ExecCall(shell=line))
    whole, part = await one.archive("."), await one.archive("a")
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert sorted(archive.getnames()) == ["a", "a/b", "a/b/c", "a/l"]
    await other.unpack(".", whole, "tar")
    await other.unpack("again", part, "tar")
    shown = await other.exec(ExecCall(shell="cat a/l again/l; stat -c %a a/b/c"))
    assert shown.stdout == "1\n1\n751\n"
    with tarfile.open(fileobj=io.BytesIO(await one.archive("a/b/c"))) as archive:
        assert archive.getnames() == ["c"]
