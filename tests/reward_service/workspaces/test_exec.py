"""Programs in a workspace: what they get, what they give, and what they leave."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, PythonCall
from services.reward_service.workspaces.running import programs
from services.reward_service.workspaces.workspace import Workspace
from tests.reward_service.workspaces.conftest import running

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shell(workspace: Workspace, line: str, **limits: object) -> str:
    result = await workspace.exec(ExecCall.model_validate({"shell": line, **limits}))
    assert result.status == "ok", result
    return result.stdout


async def test_a_program_gets_its_arguments_input_folder_and_environment(
    workspace: Workspace,
) -> None:
    await workspace.write("deep/er/file", b"content")
    code = "import os, sys; print(sys.argv[1:], sys.stdin.read(), os.listdir(), os.environ['KEY'])"
    call = ExecCall(
        argv=["python3", "-c", code, "a b", "é"], stdin="in", cwd="deep/er", env={"KEY": "v"}
    )
    result = await workspace.exec(call)
    assert (result.status, result.exit_code) == ("ok", 0)
    assert result.stdout == "['a b', 'é'] in ['file'] v\n"
    assert result.stdout_bytes == len(result.stdout.encode())


async def test_files_stay_between_calls(workspace: Workspace) -> None:
    await shell(workspace, "mkdir -p a/b && echo one > a/b/c && mv a/b/c d && rm -r a")
    assert await shell(workspace, "ls && cat d") == "d\none\n"


async def test_a_shell_line_can_do_what_shells_do(workspace: Workspace) -> None:
    line = (
        "set -e; f() { echo $1; }; for i in 1 2 3; do f $i; done | sort -r | head -1 > out; "
        "(cd $TMPDIR && echo x > t && ln -s t l && cat l); cat <<E\nhere\nE\n"
        "[ -f out ] && grep 3 out && find . -name out | xargs wc -l; "
        "sleep 0.01 & wait; kill -0 $$; trap 'echo bye' EXIT; mkfifo p; echo y > p & cat p; "
        "chmod 700 out; cp -p out out2; touch -d 2020-01-01 out; date -r out +%Y; "
        "tar cf o.tar out && tar tf o.tar; ulimit -n 32; ulimit -n"
    )
    shown = await shell(workspace, line)
    assert shown.split() == ["x", "here", "3", "1", "./out", "y", "2020", "out", "32", "bye"]


async def test_an_exit_status_or_a_signal_is_a_failure_with_its_number(
    workspace: Workspace,
) -> None:
    failed = await workspace.exec(ExecCall(shell="echo no >&2; exit 3"))
    assert (failed.status, failed.exit_code, failed.stderr) == ("failed", 3, "no\n")
    killed = await workspace.exec(ExecCall(shell="kill -TERM $$"))
    assert (killed.status, killed.exit_code) == ("failed", -signal.SIGTERM)


@pytest.mark.parametrize(
    ("argv", "cwd", "status", "said"),
    [
        (["nothing-like-it"], ".", 127, "nothing-like-it: No such file or directory\n"),
        (["./text"], ".", 126, "./text: Permission denied\n"),
        (["ls"], "nowhere", 127, "nowhere: No such file or directory\n"),
    ],
)
async def test_a_program_that_cannot_be_run_says_so_as_a_shell_does(
    workspace: Workspace, argv: list[str], cwd: str, status: int, said: str
) -> None:
    await workspace.write("text", b"no program")
    result = await workspace.exec(ExecCall(argv=argv, cwd=cwd))
    assert (result.status, result.exit_code, result.stderr) == ("failed", status, said)


async def test_a_command_as_long_as_the_kernel_takes_is_run(workspace: Workspace) -> None:
    text = "\u6c34" * 36_000  # 216 KB of JSON, and 108 KB of UTF-8
    assert await shell(workspace, f"cat <<'E' | wc -c\n{text}\nE") == "108001\n"
    many = await workspace.exec(ExecCall(argv=["printf", "%.0s.", *["x" * 1000] * 600]))
    assert many.stdout == "." * 600


async def test_a_command_that_is_too_long_costs_no_workspace(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await workspace.exec(ExecCall(shell="true " + "x" * 300_000))
    assert (result.status, result.exit_code) == ("failed", 126)
    assert result.stderr == "/bin/sh: Argument list too long\n"
    monkeypatch.setattr(programs, "_MAX_COMMAND", 1000)
    for field, call in (
        ("argv", ExecCall(argv=["true", "x" * 1000])),
        ("shell", ExecCall(shell="true " + "x" * 1000)),
        ("env", ExecCall(shell="true", env={"A": "x" * 1000})),
    ):
        with pytest.raises(InvalidInput, match=f"{field}.*write it to a file"):
            await workspace.exec(call)
    assert await shell(workspace, "echo on") == "on\n"


async def test_a_shell_that_waits_for_input_gets_its_end(workspace: Workspace) -> None:
    result = await workspace.exec(ExecCall(shell="read line; echo [$line] $?; cat; python3 -i"))
    assert result.status == "ok"
    assert result.stdout == "[] 1\n"


async def test_output_comes_while_the_program_runs(workspace: Workspace) -> None:
    first = asyncio.Event()
    seen: list[tuple[str, bytes]] = []

    def on_output(stream: str, part: bytes) -> None:
        seen.append((stream, part))
        first.set()

    line = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two >&2"
    running = asyncio.ensure_future(workspace.exec(ExecCall(shell=line, wall_s=600), on_output))
    await asyncio.wait_for(first.wait(), 300)
    assert seen == [("stdout", b"one\n")]
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    assert (await workspace.exec(ExecCall(shell="ls"))).status == "ok"


async def test_bytes_that_are_no_text_are_shown_as_replacement_characters(
    workspace: Workspace,
) -> None:
    result = await workspace.exec(ExecCall(shell=r"printf 'a\377b'"))
    assert (result.stdout, result.stdout_bytes) == ("a\ufffdb", 3)


@pytest.mark.parametrize(
    "line",
    [
        "sleep 1000 & echo done",
        "setsid sleep 1000 & echo done",
        "(setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo done",
        "sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' & echo done",
        'python3 -c \'import os; os.fork() or os.setsid() or os.fork() or __import__("time")'
        ".sleep(1000)' & echo done",
    ],
)
async def test_what_a_program_leaves_behind_is_ended_with_it(
    workspace: Workspace, line: str
) -> None:
    result = await workspace.exec(ExecCall(shell=line))
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert running(workspace) == []


async def test_what_a_program_leaves_behind_is_ended_and_the_interpreter_is_not(
    workspace: Workspace,
) -> None:
    await workspace.python(PythonCall(code="kept = 1"))
    (interpreter,) = running(workspace)
    line = "for i in 1 2 3; do (setsid sh -c 'sleep 1000 & sleep 1000' &); done; echo done"
    for _ in range(3):
        assert (await workspace.exec(ExecCall(shell=line))).status == "ok"
        assert running(workspace) == [interpreter]
    assert (await workspace.python(PythonCall(code="kept"))).result == "1"


def thread_states(workspace: Workspace) -> set[str]:
    """States of all threads of a workspace, as the kernel writes them."""
    files = [
        file
        for process in running(workspace)
        for file in Path(f"/proc/{process}/task").glob("*/stat")
    ]
    return {file.read_text().rpartition(")")[2].split()[0] for file in files}


async def stopped(workspace: Workspace) -> None:
    """Wait until every thread has met its stop signal, which takes a turn on a processor."""
    async with asyncio.timeout(30):
        while thread_states(workspace) != {"T"}:  # noqa: ASYNC110  (the kernel tells nobody)
            await asyncio.sleep(0.005)


async def test_a_cell_goes_on_with_what_it_started_and_nothing_runs_meanwhile(
    workspace: Workspace,
) -> None:
    code = (
        "import subprocess, threading, time\n"
        "times = []\n"
        "def work():\n"
        "    while True:\n"
        "        times.append(time.monotonic())\n"
        "        time.sleep(0.001)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
    )
    assert (await workspace.python(PythonCall(code=code))).status == "ok"
    await stopped(workspace)
    ended = time.monotonic()
    await asyncio.sleep(0.3)  # the subject itself: time passes, and nothing runs
    begun = time.monotonic()
    meanwhile = f"[one for one in times if {ended} < one < {begun}]"
    cell = PythonCall(code=f"time.sleep(0.1)\n{meanwhile}, times[-1] > {begun}")
    assert (await workspace.python(cell)).result == "([], True)"
    assert (await workspace.python(PythonCall(code="child.poll()"))).result is None
