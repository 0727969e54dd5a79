"""What the graders' suite tries in C++, in a workspace: as its programs, and in its compiler."""

import platform
import shutil
from pathlib import Path

import pytest

from services.protocol.reward.workspaces import CallResult, ExecCall
from services.reward_service.workspaces.workspace import Workspace
from tests.redteam.attack import CANARIES, SECRET
from tests.redteam.on_cpp_programs import CPP_ATTACKS, program
from tests.redteam.on_the_compiler import SOURCE_ATTACKS
from tests.redteam.workspaces.conftest import Open, running_in
from tests.redteam.workspaces.on_space import LIMITS

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.asyncio(loop_scope="session"),
]
SPEC = {"memory_mb": 512, "disk_mb": 64, "processes": 32}
ALLOWED = {
    "call: pair of sockets": "programs talk with their own children",
    "call: fork": "a shell makes processes",
    "call: vfork": "likewise",
    "call: clone a process": "likewise",
    "call: kill everybody": "the kernel says yes where it may signal nobody; see between_two.py",
    "call: handle on the parent": "a name alone; see on_the_agent.py for what it is good for",
    "call: outlive the parent": "what outlives its call is killed; see on_space.py",
    "call: raise its limits": "its own, and it lowers them",
    "call: send a file": "its own file to its own output",
    "file: temporary files": "its own",
    "file: a file": "likewise",
    "file: a file without a name": "likewise",
    "file: a mode": "likewise",
    "file: its environment has something": "see attacks.py for what it may not have",
    "file: what the test before it left": "an earlier call of the same workspace",
    "verdict: a forged report": "a program has no report to write to",
    "verdict: a report of not compiling": "likewise",
    "resource: fork bomb": "a workspace may have processes; see on_space.py",
}
"""Attacks of a program that are no attacks here, and why."""


async def test_what_is_left_out_is_an_attack_of_the_graders_suite() -> None:
    assert ALLOWED.keys() <= CPP_ATTACKS.keys()
    assert len(CPP_ATTACKS) - len(ALLOWED) >= 120


async def test_no_attack_of_a_compiled_program_gets_through(new_workspace: Open) -> None:
    workspace = await new_workspace(**SPEC)
    await workspace.write("attacks.cpp", program(CPP_ATTACKS).encode())
    built = await _run(workspace, "g++ -w -pthread -o attacks attacks.cpp")
    assert built.status == "ok", built
    found = []
    for number, name in enumerate(CPP_ATTACKS):
        if name.startswith("call") and platform.machine() != "x86_64":
            continue
        call = ExecCall(
            argv=["./attacks"],
            stdin=f"{number}\n",
            wall_s=1.5,
            cpu_s=0.3,
            memory_mb=96,
            output_kb=64,
        )
        done = await workspace.exec(call)
        if str(SECRET) in done.stdout and name not in ALLOWED:
            found.append(f"{name} got through: {done}")
        if done.status not in LIMITS | {"ok"} or _shows_a_canary(done):
            found.append(f"{name}: {done}")
        if running_in(workspace):
            found.append(f"{name}: processes were left")
    assert found == []
    await _usable(workspace)


async def test_no_source_makes_the_compiler_show_what_lies_outside(
    new_workspace: Open, canary_file: Path, request: pytest.FixtureRequest
) -> None:
    workspace = await new_workspace(**SPEC)
    every = request.config.getoption("--all-attacks", default=False)
    found = []
    for name, attack in SOURCE_ATTACKS.items():
        if attack.costly and not every:
            continue
        code = "#include <cstdio>\n" + attack.code.replace("CANARY", str(canary_file))
        await workspace.write("attack.cpp", code.encode())
        done = await _run(workspace, "g++ -o attack attack.cpp && ./attack && cat attack")
        if done.status not in LIMITS | {"ok"} or _shows_a_canary(done):
            found.append(f"{name}: {done}")
        if running_in(workspace):
            found.append(f"{name}: processes were left")
        await _run(workspace, "rm -rf ./* /tmp/cc*")
    assert found == []
    await _usable(workspace)


async def _run(workspace: Workspace, line: str) -> CallResult:
    return await workspace.exec(ExecCall(shell=line, wall_s=120, cpu_s=20, output_kb=1024))


def _shows_a_canary(done: CallResult) -> bool:
    shown = done.stdout + done.stderr
    return any(canary in shown for canary in (*CANARIES.values(), "root:"))


async def _usable(workspace: Workspace) -> None:
    done = await workspace.exec(ExecCall(shell="echo $((6 * 7))"))
    assert (done.status, done.stdout) == ("ok", "42\n"), done
