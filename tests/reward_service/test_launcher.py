"""A slot's loop in C does what the one in Python does, and both give each test its own process."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Verdict
from services.reward_service.isolation.jail import Jail
from services.reward_service.isolation.seccomp_filter import build_filter
from services.reward_service.sandbox import launcher
from services.reward_service.sandbox.execution import (
    Binary,
    Outcome,
    Program,
    SlotFailed,
    sealed_file,
)
from services.reward_service.sandbox.launcher import built_launcher
from services.reward_service.sandbox.self_test import find_tier
from services.reward_service.sandbox.slot import Slot

ECHO = "print(input())"
NewScoring = Callable[..., Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")


async def _library() -> bytes:
    library = await built_launcher(None)
    if not library:
        pytest.skip("needs cc")
    return library


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["A in C", "A in Python", "B in C", "B in Python"],
)
async def slot(request: pytest.FixtureRequest) -> AsyncIterator[Slot]:
    tier, language = request.param.split(" in ")
    library = await _library() if language == "C" else b""
    jail = replace(Jail.here(namespaces=tier == "A"), launcher=library)
    slot = Slot(jail, build_filter(), start_s=60)
    await slot.start()
    yield slot
    slot.close()


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Binary:
    """A program that copies its input, and ends with 3 if that begins with a question mark."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo.c").write_text(
        "#include <stdio.h>\nint main(void) { char line[99]; fgets(line, 99, stdin);"
        " fputs(line, stdout); return *line == '?' ? 3 : 0; }"
    )
    command = ["cc", "-static", "-o", str(folder / "echo"), str(folder / "echo.c")]
    subprocess.run(command, check=True)
    return Binary((folder / "echo").read_bytes())


async def run(slot: Slot, program: Program, *stdin: str, **limits: Any) -> list[Outcome]:
    first, *more = stdin
    return await asyncio.wait_for(slot.run(program.run(first, Limits(**limits), more)), 300)


@pytest.mark.parametrize(
    ("code", "exit_code", "killed"),
    [
        (ECHO, 0, None),
        ("import sys\nsys.exit(7)", 7, None),
        ("1 / 0", 1, None),
        ("while True: pass", -signal.SIGKILL, "cpu"),
        ("import time\ntime.sleep(999)", -signal.SIGKILL, "wall"),
        ("import os\nos.kill(os.getpid(), 9)", -signal.SIGKILL, None),
        ("import os\nos.abort()", -signal.SIGABRT, None),
        ("while True: print('x' * 999)", -signal.SIGXFSZ, None),
        ("x = bytearray(1 << 30)", 1, None),
    ],
)
async def test_a_process_ends_alike_in_both(
    slot: Slot, code: str, exit_code: int, killed: str | None
) -> None:
    (outcome,) = await run(slot, Program(source=code), "a line", cpu_s=0.2, output_kb=64)
    # One that gets no core is taken to idle: the machine is too busy to tell the two apart.
    ends = (killed, "wall") if killed == "cpu" else (killed,)
    assert outcome.exit_code == exit_code, outcome
    assert outcome.killed in ends, outcome
    assert outcome.cpu_s < 1.0
    if code == ECHO:
        assert (outcome.stdout, outcome.stderr, outcome.report) == (b"a line\n", b"", b"")


AT_EXIT = """import atexit, logging, logging.handlers, sys, threading, time
target = logging.StreamHandler(sys.stdout)
logging.getLogger().addHandler(logging.handlers.MemoryHandler(99, target=target))
logging.getLogger().error("kept until the end")
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("in a thread"))).start()
print(threading.main_thread().native_id == threading.get_native_id())
"""


@pytest.fixture(scope="module")
def plain() -> subprocess.CompletedProcess[bytes]:
    """The same program without a jail."""
    command = [Jail.here(namespaces=False).interpreter, "-c", AT_EXIT]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)


async def test_a_program_ends_as_it_would_without_a_jail(
    slot: Slot, plain: subprocess.CompletedProcess[bytes]
) -> None:
    (outcome,) = await run(slot, Program(source=AT_EXIT), "")
    assert (outcome.stdout, outcome.stderr) == (plain.stdout, plain.stderr)


async def test_every_process_begins_with_the_same_random_numbers(slot: Slot) -> None:
    program = Program(source="import random\nprint(random.random(), random.getrandbits(32))")
    drawn = {(await run(slot, program, ""))[0].stdout for _ in range(3)}
    assert drawn == {b"0.8444218515250481 3255389356\n"}


async def test_an_answer_can_import_what_is_not_there_before_it_starts(slot: Slot) -> None:
    names = "bz2 cmath csv hashlib html.parser unicodedata uuid zlib zoneinfo concurrent.futures"
    source = "".join(f"import {name}\n" for name in names.split())
    source += "print(hashlib.sha256(b'x').hexdigest()[:8], unicodedata.name('x'))"
    (outcome,) = await run(slot, Program(source=source), "", cpu_s=5.0)
    assert outcome.stdout == b"2d711642 LATIN SMALL LETTER X\n", outcome


async def test_the_start_up_self_test_finds_nothing_open_in_either(slot: Slot) -> None:
    assert await find_tier(slot) == ("A" if slot._jail.namespaces else "B")


@needs_compiler
async def test_each_process_of_an_order_has_its_own_input_and_outputs(
    slot: Slot, echo: Binary
) -> None:
    lines = [f"{number}{'.' * number}\n" for number in range(9)]
    code = "import sys\nline = sys.stdin.read()\nsys.stdout.write(line)\nsys.stderr.write(line[:1])"
    for program in (Program(source=code), Program(binary=echo)):
        for _ in range(2):
            outcomes = list[Outcome]()
            while len(outcomes) < len(lines):  # a busy machine ends an order early
                outcomes += await run(slot, program, *lines[len(outcomes) :])
            assert [outcome.stdout.decode() for outcome in outcomes] == lines
            said = [outcome.stderr.decode() for outcome in outcomes]
            assert said == [line[:1] if program.binary is None else "" for line in lines]
            assert all(outcome.exit_code == 0 for outcome in outcomes)


@needs_compiler
async def test_nothing_is_begun_after_a_process_that_did_not_end_well(
    slot: Slot, echo: Binary
) -> None:
    outcomes = await run(slot, Program(binary=echo), "?\n", "1\n")
    assert [outcome.exit_code for outcome in outcomes] == [3]
    outcomes = await run(slot, Program(source="assert input() != '?'"), "?\n", "1\n")
    assert [outcome.exit_code for outcome in outcomes] == [1]


async def test_little_is_begun_after_processes_that_take_long(slot: Slot) -> None:
    outcomes = await run(slot, Program(source="import time\ntime.sleep(0.2)"), *["x"] * 9)
    assert len(outcomes) == 1


async def test_all_processes_of_an_order_together_take_no_longer_than_they_may(slot: Slot) -> None:
    code = "import time\ntime.sleep(0 if input() == 'first' else 999)"
    execution = Program(source=code).run("first\n", Limits(), ["second\n"])
    while True:
        outcomes = await slot.run(replace(execution, longest_s=1.0))
        if len(outcomes) == 2 or outcomes[0].killed is not None:  # a busy machine is late
            break
    assert outcomes[-1].killed == "wall"
    assert outcomes[-1].wall_s < execution.wall_s


async def test_code_is_compiled_by_the_first_process_and_kept_for_the_others(slot: Slot) -> None:
    program = Program(source=ECHO)
    (first,) = await run(slot, program, "1\n")
    assert program.run("", Limits()).compiled is not None
    (second,) = await run(slot, program, "2\n")
    assert (first.stdout, second.stdout) == (b"1\n", b"2\n")


async def test_code_that_is_kept_is_out_of_reach_of_what_runs(slot: Slot) -> None:
    """Or an input of one test could reach another in it."""
    reach = """import os
for number in range(4, 300):
    for attempt in (os.fstat, lambda one: os.pwrite(one, b"x", 0), lambda one: os.dup2(one, 9)):
        try:
            attempt(number)
        except OSError:
            continue
        if number != 60:
            print("got", number)
print("end")
"""
    program = Program(source=reach)
    for _ in range(2):
        (outcome,) = await run(slot, program, "", cpu_s=5.0)
        assert outcome.stdout == b"end\n", outcome


@pytest.mark.parametrize("source", [f"{ECHO}\nx = '{'x' * (1 << 17)}'", "def f(:"])
async def test_code_that_is_too_large_or_none_is_not_kept(slot: Slot, source: str) -> None:
    program = Program(source=source)
    await run(slot, program, "1\n")
    assert program.run("", Limits()).compiled is None


async def test_keeping_code_counts_as_no_output(slot: Slot) -> None:
    source = f"{ECHO}\n" + "\n".join(f"x{number} = {number}" for number in range(999))
    program = Program(source=source)
    (outcome,) = await run(slot, program, "1\n", output_kb=1)
    assert outcome.exit_code == 0
    assert program.run("", Limits()).compiled is None


async def test_a_process_that_cannot_be_confined_runs_nothing(slot: Slot) -> None:
    broken = replace(slot._seccomp, program=b"\xff" * 16, own_pid_at=4)
    other = Slot(slot._jail, broken, start_s=60)
    try:
        await other.start()
        with pytest.raises(SlotFailed, match="confined"):
            await run(other, Program(source=ECHO), "1\n")
    finally:
        other.close()


@needs_compiler
async def test_an_order_with_too_little_input_is_an_error_and_the_slot_goes_on(
    slot: Slot, echo: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "services.reward_service.sandbox.slot.sealed_file"
    with monkeypatch.context() as patched:
        patched.setattr(place, lambda content: sealed_file(content[:3]))
        with pytest.raises(SlotFailed, match="could not be made"):
            await run(slot, Program(binary=echo), "long\n")
    assert slot.alive
    (outcome,) = await run(slot, Program(binary=echo), "long\n")
    assert outcome.stdout == b"long\n"


async def test_a_slot_that_cannot_load_the_library_goes_on_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jail = replace(Jail.here(namespaces=False), launcher=b"no library")
    slot = Slot(jail, build_filter(), start_s=60)
    try:
        await slot.start()
        (outcome,) = await run(slot, Program(source=ECHO), "1\n")
    finally:
        slot.close()
    assert outcome.stdout == b"1\n"
    assert "launcher_not_loaded" in caplog.text


async def test_without_a_compiler_answers_are_graded_all_the_same(
    new_scoring: NewScoring, program_job: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launcher, "_COMPILERS", ("no-such-compiler",))
    assert await built_launcher(None) == b""
    scoring = await new_scoring("B", slots=1)
    try:
        code = "print(sum(map(int, input().split())))"
        (score,) = await scoring.score([program_job(code, [("20 1", "21")] * 20)])
    finally:
        scoring.close()
    assert (score.verdict, score.run) == (Verdict.ACCEPTED, 20)


async def test_a_compiler_that_fails_is_the_same_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await built_launcher(None) == b""
    assert "launcher_not_built" in caplog.text


@needs_compiler
async def test_the_library_is_compiled_once_for_all_services_of_a_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = await built_launcher(str(tmp_path / "cache"))
    monkeypatch.setattr(launcher, "_FLAGS", ("-no-such-flag", *launcher._FLAGS))
    assert await built_launcher(str(tmp_path / "cache")) == b"", "other flags, another library"
    monkeypatch.undo()

    async def never(*_: object) -> bytes:
        raise AssertionError("it is known")

    monkeypatch.setattr(launcher, "_compiled", never)
    assert await built_launcher(str(tmp_path / "cache")) == first
