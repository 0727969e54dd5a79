"""An answer has its limits to itself: what its jail costs on a busy machine is not counted."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time

import pytest

from services.protocol.reward.code_graders import PythonAssertsGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.grading import helper_main
from services.reward_service.isolation.jail import BOOT
from services.reward_service.sandbox.slot import Control

SLOW = """
import time
confine = sys.modules['services.reward_service.jailed.confine']
seal = confine.seal
def slowly(*arguments):
    while time.process_time() < 0.4:
        pass
    time.sleep(1.2)
    seal(*arguments)
confine.seal = slowly
module.main(control)
"""


LATE = """
import time
zygote = sys.modules['services.reward_service.jailed.zygote']
wait = zygote.ForkServer._wait_until_confined
def late(self, child, handle):
    confined = wait(self, child, handle)
    time.sleep(1.0)
    return confined
zygote.ForkServer._wait_until_confined = late
module.main(control)
"""


@pytest.fixture
def slots_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop in C has no place where a test could hold it up."""
    monkeypatch.setattr("services.reward_service.sandbox.launcher._COMPILERS", ())


@pytest.fixture
def jails_that_are_slow(slots_in_python: None, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BOOT.replace("module.main(control)", SLOW)
    assert boot != BOOT
    monkeypatch.setattr("services.reward_service.isolation.jail.BOOT", boot)


@pytest.mark.usefixtures("jails_that_are_slow")
async def test_an_answer_is_judged_though_its_jail_took_longer_than_its_limits(
    new_scoring, function_job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reward_service.sandbox.execution.idle_limit_s", lambda _: 1.0)
    scoring = await new_scoring("B", slots=1)
    try:
        good, loop = await scoring.score(
            [
                function_job("def f(a, b):\n    return a + b", cpu_s=0.3),
                function_job("def f(a, b):\n    while True: pass", cpu_s=0.3),
            ]
        )
    finally:
        scoring.close()
    assert (good.verdict, loop.verdict) == (Verdict.ACCEPTED, Verdict.TIME_LIMIT)


@pytest.mark.usefixtures("slots_in_python")
async def test_tests_that_waited_for_a_starved_answer_wait_again_though_its_jail_saw_less(
    new_scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jail of the tests may learn late that they began, so its clock alone proves nothing."""
    boot = BOOT.replace("module.main(control)", LATE)
    monkeypatch.setattr("services.reward_service.isolation.jail.BOOT", boot)
    monkeypatch.setattr("services.reward_service.judging.split_tests.idle_limit_s", lambda _: 1.5)
    of_worker = "services.reward_service.sandbox.sandbox"
    monkeypatch.setattr(f"{of_worker}._machine_is_contended", lambda: True)
    monkeypatch.setattr(f"{of_worker}._CONTENDED_FACTOR", 200)
    tests = "def check(call):\n    for x in (7, 7):\n        assert call(x) == x"
    grader = PythonAssertsGrader(kind="python_asserts", tests=tests, entry_point="f")
    answer = "import time\ntime.sleep(2.5)\ndef f(x):\n    return x"
    scoring = await new_scoring("B", slots=1)
    try:
        (score,) = await scoring.score([ScoreJob(job_id="job", completion=answer, grader=grader)])
    finally:
        scoring.close()
    assert score.verdict is Verdict.ACCEPTED, score


async def test_an_answer_that_is_there_counts_though_the_loop_came_late() -> None:
    control = Control()
    loop = asyncio.get_running_loop()
    loop.call_soon(time.sleep, 0.2)  # longer than the deadline, and the message is there by then
    control.theirs.send(b"done")
    try:
        assert (await control.receive(0.05))[0] == b"done"
        with pytest.raises(TimeoutError):
            await control.receive(0.05)
    finally:
        control.close()


def test_a_call_that_is_killed_before_it_has_read_its_request_is_said_to_be_late() -> None:
    ours, theirs = socket.socketpair()
    with ours, subprocess.Popen(["sleep", "600"]) as starved:
        call = helper_main._Call(starved.pid, theirs, 0.0)
        ours.sendall(b"request")
        ours.shutdown(socket.SHUT_WR)
        call.kill()
        call.close()
        assert ours.recv(100) == b'{"killed": true}'
        assert ours.recv(100) == b"", "the end, and not an error"


def test_a_reply_is_complete_though_processes_of_later_calls_hold_its_stream() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs.dup(), subprocess.Popen(["true"]) as ended:
        call = helper_main._Call(ended.pid, theirs, 600.0)
        call.close()
        ours.settimeout(60)
        assert ours.recv(100) == b""


def test_waiting_for_a_core_is_no_part_of_a_calls_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [100.0], [0.0]
    monkeypatch.setattr(helper_main.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(helper_main, "_waited_for_core_s", lambda _: waited[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        call = helper_main._Call(os.getpid(), ours, 2.0)
        now[0] += 1.9
        assert not call.late()
        now[0], waited[0] = call.look_at, 1.5
        assert not call.late()
        assert call.look_at == now[0] + 1.5
        now[0] = call.look_at
        assert call.late()
        waited[0] = now[0] = 100.0 + helper_main.longest_s(2.0)
        assert call.late()


def test_a_call_whose_helper_died_before_it_could_die_with_it_does_not_run() -> None:
    ours, theirs = socket.socketpair()
    dead = os.getppid()  # not the process that forks the call here
    child = os.fork()
    if child == 0:
        ours.close()
        helper_main._run(theirs, dead)
    theirs.close()
    with ours, contextlib.suppress(OSError):  # nobody is there to read it
        ours.sendall(json.dumps({"function": "builtins:len", "arguments": [1]}).encode())
        ours.shutdown(socket.SHUT_WR)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
