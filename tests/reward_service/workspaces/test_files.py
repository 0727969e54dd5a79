"""Files by call: written, read, listed and removed, and no path that leads anywhere else."""

import os
import shutil

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, FileEntry, PythonCall, file_path
from services.reward_service.workspaces.errors import NoSuchFile, WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.reward_service.workspaces.conftest import Opener

ON_ONE_LOOP = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("path", "clean"),
    [("a", "a"), ("./a//b/.", "a/b"), ("", "."), (".", "."), ("/work/a", "a"), ("/work", ".")],
)
def test_a_path_is_one_below_the_workspace(path: str, clean: str) -> None:
    assert file_path(path) == clean


NO_FILE = [
    "../a",
    "a/../../b",
    "a/..",
    "..",
    "/etc/passwd",
    "/workshop/a",
    "/",
    "a\0b",
    "\ud800",
    "x" * 256,
    "é" * 128,
    "/".join("x" * 65),
    "x/" * 3000,
]


@pytest.mark.parametrize("path", NO_FILE)
def test_a_path_that_no_file_of_a_workspace_can_have_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"a (path|name) "):
        file_path(path)


@ON_ONE_LOOP
@pytest.mark.parametrize("path", NO_FILE)
async def test_no_call_takes_such_a_path(workspace: Workspace, path: str) -> None:
    for call in (
        workspace.write(path, b""),
        workspace.read(path, max_bytes=1),
        workspace.list(path),
        workspace.remove(path),
        workspace.unpack(path, b"", "tar"),
        workspace.archive(path),
    ):
        with pytest.raises(InvalidInput, match="path"):
            await call


@ON_ONE_LOOP
async def test_a_file_is_written_read_listed_and_removed(workspace: Workspace) -> None:
    content = bytes(range(256)) * 1000
    await workspace.write("a/b/c.bin", content, mode=0o755)
    assert await workspace.read("a/b/c.bin", max_bytes=len(content)) == content
    assert await workspace.list("a/b") == [
        FileEntry(path="a/b/c.bin", kind="file", bytes=len(content), mode=0o755)
    ]
    assert await workspace.list("a/b/c.bin") == await workspace.list("a/b")
    await workspace.write("a/b/c.bin", b"short")
    assert await workspace.read("/work/a/b/c.bin", max_bytes=100) == b"short"
    await workspace.remove("a")
    assert await workspace.list(".") == []
    with pytest.raises(NoSuchFile, match=r"a/b/c\.bin"):
        await workspace.read("a/b/c.bin", max_bytes=1)


@ON_ONE_LOOP
async def test_a_file_larger_than_may_be_read_is_refused(workspace: Workspace) -> None:
    await workspace.write("f", b"12345")
    assert await workspace.read("f", max_bytes=5) == b"12345"
    with pytest.raises(InvalidInput, match="larger than may be read"):
        await workspace.read("f", max_bytes=4)


LINKS = (
    "ln -s /etc/passwd absolute; ln -s ../../../../etc/passwd up; ln -s /etc folder; "
    "ln -s / root; ln -s loop loop; ln -s real inside; echo ok > real; mkdir below; "
    "ln -s below under; ln -s /proc/self/root magic; mkfifo pipe"
)


@ON_ONE_LOOP
async def test_no_link_leads_out_of_the_workspace(workspace: Workspace) -> None:
    await workspace.exec(ExecCall(shell=LINKS))
    assert await workspace.read("inside", max_bytes=9) == b"ok\n"
    await workspace.write("under/f", b"1")
    assert await workspace.read("below/f", max_bytes=9) == b"1"
    for path in ("absolute", "up", "folder/passwd", "root/etc/passwd", "loop", "magic/etc/passwd"):
        with pytest.raises(InvalidInput):
            await workspace.read(path, max_bytes=1 << 20)
        with pytest.raises(InvalidInput):
            await workspace.write(path, b"")
    for path in ("folder", "root", "magic"):
        with pytest.raises(InvalidInput):
            await workspace.archive(f"{path}/etc")
        with pytest.raises(InvalidInput):
            await workspace.list(f"{path}/.")
    kinds = {entry.path: entry.kind for entry in await workspace.list(".")}
    assert kinds["absolute"] == kinds["loop"] == "link"
    assert kinds["pipe"] == "other"


@ON_ONE_LOOP
@pytest.mark.parametrize("path", ["pipe", "folder"])
async def test_what_is_no_plain_file_is_neither_read_nor_written(
    workspace: Workspace, path: str
) -> None:
    await workspace.exec(ExecCall(shell="mkfifo pipe; mkdir folder"))
    with pytest.raises(InvalidInput, match="plain file"):
        await workspace.read(path, max_bytes=10)
    with pytest.raises(InvalidInput):
        await workspace.write(path, b"x")


@ON_ONE_LOOP
async def test_a_program_cannot_make_a_device(workspace: Workspace) -> None:
    result = await workspace.exec(ExecCall(shell="mknod d c 1 3 || mknod d b 8 0"))
    assert result.status == "failed"


@ON_ONE_LOOP
async def test_whatever_a_program_makes_can_be_listed_and_removed(workspace: Workspace) -> None:
    code = (
        "import os\n"
        "for name in (b'\\xff\\xfe', b'new\\nline', '\\u202e'.encode(), b'x' * 255):\n"
        "    open(name, 'w').close()\n"
        "os.mkdir('closed'); open('closed/f', 'w').close(); os.chmod('closed', 0)\n"
    )
    assert (await workspace.python(PythonCall(code=code, wall_s=300))).status == "ok"
    listed = await workspace.list(".")
    assert len(listed) == 5
    assert "\\xff\\xfe" in {entry.path for entry in listed}
    for entry in listed:
        entry.model_dump_json().encode()
    await workspace.remove("closed")
    await workspace.remove(".")
    assert await workspace.list(".") == []
    assert (await workspace.exec(ExecCall(shell="mktemp && touch $TMPDIR/x"))).status == "ok"


DEEP = """import os
top = os.getcwd()
for _ in range(3000):
    os.mkdir('d' * 100); os.chdir('d' * 100)
os.chdir(top)"""


@ON_ONE_LOOP
async def test_a_tree_that_no_path_can_name_is_removed_or_ends_its_workspace(
    workspace: Workspace,
) -> None:
    result = await workspace.python(PythonCall(code=DEEP, wall_s=300))
    if workspace.tier == "A":
        assert result.status == "ok"
        with pytest.raises(InvalidInput, match="deeper than"):
            await workspace.archive("d" * 100)
        await workspace.remove("d" * 100)
        assert await workspace.list(".") == []
    else:  # where no file system bounds the files, they must be counted
        assert result.status == "disk_limit"
        with pytest.raises(WorkspaceGone, match="disk"):
            await workspace.list(".")


@ON_ONE_LOOP
async def test_a_folder_of_very_many_entries_is_refused_and_not_read_to_its_end(
    workspace: Workspace,
) -> None:
    code = "for i in range(10_001): open(str(i), 'w').close()"
    assert (await workspace.python(PythonCall(code=code, wall_s=300))).status == "ok"
    with pytest.raises(InvalidInput, match="more entries"):
        await workspace.list(".")


@ON_ONE_LOOP
async def test_a_disk_that_is_full_is_named(opened: Opener) -> None:
    workspace = await opened(disk_mb=2)
    await workspace.write("a", bytes(1 << 20))
    with pytest.raises(InvalidInput, match="disk is full"):
        await workspace.write("b", bytes(4 << 20))
    await workspace.write("c", bytes(600 << 10))
    with pytest.raises(InvalidInput, match="disk is full"):
        await workspace.write("d", bytes(600 << 10))
    assert await workspace.read("a", max_bytes=1 << 20) == bytes(1 << 20)


@ON_ONE_LOOP
async def test_files_are_there_before_the_first_call(opened: Opener) -> None:
    workspace = await opened(files={"a/b": "é", "c": ""})
    assert (await workspace.exec(ExecCall(shell="cat a/b; ls"))).stdout == "éa\nc\n"


@ON_ONE_LOOP
async def test_two_workspaces_see_nothing_of_each_other(opened: Opener) -> None:
    one, other = await opened(), await opened()
    await one.write("secret", b"s3cret")
    folder = one.jail.path
    line = f"cat {folder}/secret; ls {folder} {os.path.dirname(folder)}; cat ../*/secret"
    if folder == other.jail.path:
        line = f"ls {folder}; cat /proc/*/root/work/secret"
    result = await other.exec(ExecCall(shell=line))
    assert "s3cret" not in result.stdout + result.stderr
    assert "secret" not in result.stdout


@ON_ONE_LOOP
async def test_folders_of_a_workspace_are_found_at_the_root_as_well(
    workspaces: Workspaces, opened: Opener
) -> None:
    spec = {"root_folders": ["app", "tests"], "files": {"app/a.txt": "one\n"}}
    if workspaces.tier == "B":
        with pytest.raises(InvalidInput, match=r"root_folders.*tier B"):
            await opened(**spec)
        return
    for taken in ("usr", "tmp", "work", "dev"):
        with pytest.raises(InvalidInput, match=rf"root_folders: '{taken}'"):
            await opened(root_folders=["app", taken])
    workspace = await opened(**spec)
    result = await workspace.exec(ExecCall(shell="cd /app && cat a.txt && mv a.txt /tests/b.txt"))
    assert result.stdout == "one\n"
    assert await workspace.read("tests/b.txt", max_bytes=9) == b"one\n"
    unseen = workspaces.new_folder()
    (unseen / "c.txt").write_text("two\n")
    archive = await workspace.archive(".")
    as_graded = workspace.spec.model_copy(update={"files": {}})
    copy = await workspaces.open_copy(archive, as_graded, owner="", tests=unseen)
    try:
        result = await copy.exec(ExecCall(shell="ls /tests /app"))
        assert result.stdout == "/app:\n\n/tests:\nc.txt\n"
    finally:
        await copy.close("closed")
        shutil.rmtree(unseen)
