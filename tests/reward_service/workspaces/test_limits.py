"""Every limit of a call ends it by name, and the workspace goes on."""

import os

import pytest

from services.protocol.reward.workspaces import CallResult, ExecCall, PythonCall
from services.reward_service.workspaces.errors import WorkspaceFault
from services.reward_service.workspaces.jails.folder import WorkspaceFolder
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.reward_service.workspaces.conftest import Opener, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENCE_S = 300.0
"""For what is ended at another limit, however busy the machine is."""


async def exec_(workspace: Workspace, line: str, **limits: object) -> CallResult:
    call = {"shell": line, "wall_s": PATIENCE_S, "cpu_s": PATIENCE_S, **limits}
    return await workspace.exec(ExecCall.model_validate(call))


async def cell(workspace: Workspace, code: str, **limits: object) -> CallResult:
    call = {"code": code, "wall_s": PATIENCE_S, "cpu_s": PATIENCE_S, **limits}
    return await workspace.python(PythonCall.model_validate(call))


async def goes_on(workspace: Workspace) -> None:
    assert running(workspace) == []
    assert (await exec_(workspace, "echo on")).stdout == "on\n"
    assert (await cell(workspace, "1 + 1")).result == "2"


@pytest.mark.parametrize(
    "line",
    [
        "sleep 1000",
        "sleep 1000 & sleep 1000",
        "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
        "kill -STOP $$",
    ],
)
async def test_a_program_is_ended_after_its_wall_time(workspace: Workspace, line: str) -> None:
    result = await exec_(workspace, line, wall_s=0.3)
    assert (result.status, result.exit_code) == ("time_limit", -9)
    assert result.wall_s >= 0.3
    await goes_on(workspace)


@pytest.mark.parametrize(
    "line",
    [
        "while :; do :; done",
        "(while :; do :; done) & (while :; do :; done) & wait",
        "setsid sh -c 'while :; do :; done' & sleep 1000",
        "while :; do /bin/true; done",
    ],
)
async def test_processor_time_counts_for_all_processes_together(
    workspace: Workspace, line: str
) -> None:
    result = await exec_(workspace, line, cpu_s=0.5)
    assert result.status == "time_limit"
    assert 0.4 < result.cpu_s < 60
    await goes_on(workspace)


async def test_output_without_end_is_cut_and_ended(workspace: Workspace) -> None:
    result = await exec_(workspace, "yes & yes >&2", output_kb=8)
    assert result.status == "output_limit"
    assert len(result.stdout) + len(result.stderr) == 8 << 10
    assert result.stdout_bytes + result.stderr_bytes > 8 << 10
    await goes_on(workspace)
    result = await cell(workspace, "while True: print('x' * 1000)", output_kb=8)
    assert (result.status, len(result.stdout)) == ("output_limit", 8 << 10)
    assert result.interpreter_restarted


async def test_output_of_just_the_limit_is_whole(workspace: Workspace) -> None:
    result = await exec_(workspace, "head -c 8192 /dev/zero", output_kb=8)
    assert (result.status, result.stdout_bytes, len(result.stdout)) == ("ok", 8192, 8192)


ONE = "import time; held = bytearray(200 << 20); time.sleep(1000)"
SHARED = """import mmap, time
held = mmap.mmap(-1, 400 << 20)
for at in range(0, len(held), 4096): held[at] = 1
time.sleep(1000)"""
FORKED = """import os, time
for _ in range(5):
    if os.fork() == 0: break
held = bytearray(os.urandom(1)) * (80 << 20)
time.sleep(1000)"""


@pytest.mark.parametrize("code", [ONE, SHARED, FORKED])
async def test_memory_counts_for_all_processes_together(opened: Opener, code: str) -> None:
    workspace = await opened(memory_mb=256)
    await cell(workspace, "held = bytearray(100 << 20)")
    result = await workspace.exec(
        ExecCall(argv=["python3", "-c", code], wall_s=PATIENCE_S, cpu_s=PATIENCE_S)
    )
    assert result.status == "memory_limit"
    assert (await cell(workspace, "len(held)")).result == str(100 << 20)


async def test_memory_that_forked_processes_share_counts_once(opened: Opener) -> None:
    workspace = await opened(memory_mb=256)
    code = """import os, time
held = bytearray(os.urandom(1)) * (120 << 20)
children = [os.fork() or (time.sleep(1), os._exit(0)) for _ in range(4)]
print([os.waitpid(child, 0)[1] for child in children])"""
    result = await workspace.exec(ExecCall(argv=["python3", "-c", code], wall_s=PATIENCE_S))
    assert (result.status, result.stdout) == ("ok", "[0, 0, 0, 0]\n")


async def test_a_cell_that_asks_for_too_much_memory_keeps_its_variables(opened: Opener) -> None:
    workspace = await opened(memory_mb=128)
    await cell(workspace, "kept = 1")
    result = await cell(workspace, "bytearray(1 << 30)")
    assert (result.status, result.interpreter_restarted) == ("memory_limit", False)
    assert (await cell(workspace, "kept")).result == "1"


@pytest.mark.parametrize(
    "line",
    [
        "head -c 100M /dev/zero > big",
        "for i in $(seq 20); do head -c 1M /dev/zero > f$i || exit 1; done",
    ],
)
async def test_a_full_disk_is_named_and_can_be_emptied(opened: Opener, line: str) -> None:
    workspace = await opened(disk_mb=8)
    result = await exec_(workspace, line)
    assert result.status == "disk_limit", result
    assert (await exec_(workspace, "rm -f big f*; echo x > y; cat y")).stdout == "x\n"


async def test_files_without_content_count_as_well(opened: Opener) -> None:
    workspace = await opened(disk_mb=4)
    code = "for i in range(10 ** 9): open(f'f{i}', 'w').close()"
    result = await cell(workspace, code)
    assert result.status == "disk_limit", result
    assert workspace.disk_used < 400 << 20


BOMB = """import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.01)"""


async def test_a_fork_bomb_is_held_and_ended(opened: Opener) -> None:
    workspace = await opened(processes=16)
    argv = ["python3", "-c", BOMB]
    result = await workspace.exec(ExecCall(argv=argv, wall_s=2, cpu_s=PATIENCE_S))
    assert result.status in ("time_limit", "process_limit")
    await goes_on(workspace)


def _counts_alone(workspaces: Workspaces) -> None:
    if workspaces.tier == "B" and os.geteuid() != 0:
        pytest.skip("an ordinary user's processes are counted together")


async def test_a_fork_bomb_that_a_program_leaves_is_ended(
    workspaces: Workspaces, opened: Opener
) -> None:
    _counts_alone(workspaces)
    workspace = await opened(processes=16)
    await cell(workspace, "kept = 1")
    (interpreter,) = running(workspace)
    await workspace.write("bomb.py", BOMB.encode())
    for _ in range(3):
        result = await exec_(workspace, "setsid python3 bomb.py & sleep 0.3; echo done")
        assert result.status in ("ok", "process_limit", "failed")
        assert running(workspace) == [interpreter]


async def test_too_many_processes_are_named(workspaces: Workspaces, opened: Opener) -> None:
    _counts_alone(workspaces)
    workspace = await opened(processes=8)
    code = "import os, time\nfor _ in range(50):\n  if os.fork() == 0: time.sleep(1000)"
    result = await workspace.exec(ExecCall(argv=["python3", "-c", code], wall_s=PATIENCE_S))
    assert result.status in ("process_limit", "failed")
    await goes_on(workspace)


async def test_a_program_that_can_start_none_is_told_why(
    workspaces: Workspaces, opened: Opener
) -> None:
    _counts_alone(workspaces)
    workspace = await opened(processes=16)
    code = """import os, time
for _ in range(99):
    try:
        if os.fork() == 0: time.sleep(1000)
    except OSError: break"""
    assert (await cell(workspace, code)).status == "ok"
    assert len(running(workspace)) >= 16
    result = await exec_(workspace, "ls; echo here")
    assert (result.status, result.stdout) == ("process_limit", "")


async def test_a_full_disk_of_the_node_is_a_fault_and_no_result(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await opened(disk_mb=8)
    monkeypatch.setattr(WorkspaceFolder, "node_is_full", lambda _: True)
    assert (await exec_(workspace, "echo on")).status == "ok"
    assert (await exec_(workspace, "head -c 20M /dev/zero > big")).status == "disk_limit"
    await workspace.remove(".")
    if workspace.jail.folder is None:  # a file system in memory
        assert (await exec_(workspace, "exit 1")).status == "failed"
        return
    for call in (exec_(workspace, "exit 1"), cell(workspace, "1 / 0")):
        with pytest.raises(WorkspaceFault, match="disk of the node"):
            await call


async def test_a_file_larger_than_the_disk_ends_the_program(opened: Opener) -> None:
    workspace = await opened(disk_mb=4)
    result = await exec_(workspace, "truncate -s 1G sparse")
    assert result.status in ("disk_limit", "failed")
    await goes_on(workspace)
