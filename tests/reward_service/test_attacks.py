"""Untrusted code reaches nothing: answers that try to escape, cheat or do harm."""
# ruff: noqa: E501 - an attack a line

import asyncio
import os
from collections.abc import Callable

import pytest

from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.sandbox import sandbox
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="session")
JobMaker = Callable[..., ScoreJob]
Processes = Callable[[Scoring], set[int]]

SECRET = 918273645
"""The expected result; an attack succeeds if it makes the service see this number."""

_C = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def _syscall(number: str) -> str:
    """Return the secret if a raw system call is let through."""
    return f"{_C}def f():\n    return {SECRET} if libc.syscall({number}) >= 0 else 0"


# Attacks on the machine give the right answer if they get through, so acceptance is the alarm.
ON_THE_MACHINE = {
    "fork": f"import os\ndef f():\n    os.fork()\n    return {SECRET}",
    "fork bomb": f"import os\ndef f():\n    while True: os.fork()\n    return {SECRET}",
    "vfork by libc": f"{_C}def f():\n    return {SECRET} if libc.vfork() >= 0 else 0",
    "exec": f"import os\ndef f():\n    os.execv('/bin/sh', ['sh', '-c', 'true'])\n    return {SECRET}",
    "subprocess": f"import subprocess\ndef f():\n    subprocess.run(['true'])\n    return {SECRET}",
    "posix_spawn": (
        f"import os\ndef f():\n    os.posix_spawn('/bin/true', ['true'], {{}})\n    return {SECRET}"
    ),
    "tcp": f"import socket\ndef f():\n    socket.create_connection(('127.0.0.1', 1))\n    return {SECRET}",
    "udp": (
        "import socket\ndef f():\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"    s.sendto(b'x', ('127.0.0.1', 9))\n    return {SECRET}"
    ),
    "unix socket": f"import socket\ndef f():\n    socket.socket(socket.AF_UNIX)\n    return {SECRET}",
    "netlink": f"import socket\ndef f():\n    socket.socket(16, 3, 0)\n    return {SECRET}",
    "read passwd": f"def f():\n    open('/etc/passwd').read()\n    return {SECRET}",
    "read environment": f"def f():\n    open('/proc/self/environ').read()\n    return {SECRET}",
    "read parent's memory": (
        f"import os\ndef f():\n    open(f'/proc/{{os.getppid()}}/mem', 'rb')\n    return {SECRET}"
    ),
    "list proc": f"import os\ndef f():\n    os.listdir('/proc')\n    return {SECRET}",
    "write tmp": f"def f():\n    open('/tmp/millrace-attack', 'w').write('x')\n    return {SECRET}",
    "write shm": f"def f():\n    open('/dev/shm/millrace-attack', 'w')\n    return {SECRET}",
    "write the library": (
        f"import os\ndef f():\n    open(os.__file__, 'a').write('x')\n    return {SECRET}"
    ),
    "make a folder": f"import os\ndef f():\n    os.mkdir('/tmp/millrace-attack')\n    return {SECRET}",
    "change a mode": f"import os\ndef f():\n    os.chmod('/tmp', 0o777)\n    return {SECRET}",
    "memfd": f"import os\ndef f():\n    os.memfd_create('x')\n    return {SECRET}",
    "signal the parent": f"import os\ndef f():\n    os.kill(os.getppid(), 9)\n    return {SECRET}",
    "signal everybody": f"import os\ndef f():\n    os.kill(-1, 9)\n    return {SECRET}",
    "signal the group": f"import os\ndef f():\n    os.killpg(0, 9)\n    return {SECRET}",
    "signal through a pipe": (
        "import fcntl, os\ndef f():\n    r, w = os.pipe()\n    fcntl.fcntl(r, 10, 9)\n"
        f"    fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())\n    return {SECRET}"
    ),
    "pidfd": (
        "import os, signal\ndef f():\n    fd = os.pidfd_open(os.getppid())\n"
        f"    signal.pidfd_send_signal(fd, 9)\n    return {SECRET}"
    ),
    "ptrace the parent": f"{_C}def f():\n    return {SECRET} if libc.ptrace(16, os.getppid(), 0, 0) == 0 else 0",
    "read the parent by call": _syscall("310, os.getppid(), None, 0, None, 0, 0"),
    "new user namespace": f"{_C}def f():\n    return {SECRET} if libc.unshare(0x10000000) == 0 else 0",
    "mount": f"{_C}def f():\n    return {SECRET} if libc.mount(b'x', b'/', b'tmpfs', 0, None) == 0 else 0",
    "chroot": f"import os\ndef f():\n    os.chroot('/usr')\n    return {SECRET}",
    "become root": f"import os\ndef f():\n    os.setuid(0)\n    return {SECRET}",
    "outlive the service": f"import os\ndef f():\n    os.setsid()\n    return {SECRET}",
    "another filter": f"{_C}def f():\n    return {SECRET} if libc.prctl(22, 1) == 0 else 0",
    "survive the parent": f"{_C}def f():\n    return {SECRET} if libc.prctl(1, 0) == 0 else 0",
    "raise a limit": (
        "import resource\ndef f():\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        f"    return {SECRET}"
    ),
    "priority": f"import os\ndef f():\n    os.nice(-5)\n    return {SECRET}",
    "shared memory segment": _syscall("29, 0, 4096, 0o1600"),
    "io_uring": _syscall("425, 8, None"),
    "bpf": _syscall("321, 0, None, 0"),
    "userfaultfd": _syscall("323, 0"),
    "keyring": _syscall("250, 0, -3, 1"),
    "perf event": _syscall("298, None, 0, -1, -1, 0"),
    "type into the terminal": (
        f"import fcntl\ndef f():\n    fcntl.ioctl(0, 0x5412, b'x')\n    return {SECRET}"
    ),
}


ON_DISK = ("/tmp/millrace-attack", "/dev/shm/millrace-attack")


@pytest.mark.parametrize("name", ON_THE_MACHINE)
async def test_untrusted_code_reaches_nothing(
    scoring: Scoring, function_job: JobMaker, processes_of: Processes, name: str
) -> None:
    await _survives(scoring, function_job, processes_of, ON_THE_MACHINE[name])
    assert not _on_disk()


# Attacks on the verdict: none of them knows the number, all of them want to be accepted.
ON_THE_VERDICT = {
    "exit 0": "import os\nos._exit(0)",
    "exit 0 in the call": "import os\ndef f():\n    os._exit(0)",
    "polite exit": "raise SystemExit(0)",
    "equal to everything": (
        "class E(int):\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
        "    __hash__ = int.__hash__\n    def __repr__(self): return '918273645'\n"
        "def f():\n    return E(1)"
    ),
    "string equal to everything": (
        "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n"
        "def f():\n    return S('x')"
    ),
    "patched comparison": (
        "import operator, builtins\noperator.eq = lambda a, b: True\n"
        "builtins.isinstance = lambda *a: True\ndef f():\n    return 1"
    ),
    "patched encoder": (
        "import sys\nm = sys.modules['services.reward_service.jailed.answer']\n"
        "m.encode = lambda v: 'accepted'\ndef f():\n    return 1"
    ),
    "forged reports": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'=accepted\\nACCEPTED\\n')\n"
        "    except OSError: pass\ndef f():\n    return 1"
    ),
    "forged output": 'print(\'{"verdict": "accepted", "reward": 1.0}\')\ndef f():\n    print(\'918273645\')',
    "emptied report": (
        "import os\nos.ftruncate(3, 0)\ndef f():\n    os.ftruncate(3, 0)\n    os._exit(0)"
    ),
    "frames": (
        "import sys\ndef f():\n    frame = sys._getframe()\n    while frame:\n"
        "        for v in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "            if 'expected' in str(v): return v['expected'] if isinstance(v, dict) else v\n"
        "        frame = frame.f_back\n    raise LookupError"
    ),
    "every object": (
        "import gc\ndef f():\n    for o in gc.get_objects():\n"
        "        if isinstance(o, dict):\n"
        "            for k, v in list(o.items()):\n"
        "                if type(v) is int and 918 == v // 10**6: return v\n    raise LookupError"
    ),
    "every number in memory": (
        "import gc\ngc.unfreeze()\ndef f():\n    stack = gc.get_objects()\n"
        "    for o in stack:\n        if type(o) in (list, tuple):\n            for v in o:\n"
        "                if type(v) is int and 918 == v // 10**6: return v\n    raise LookupError"
    ),
    "not a number": "def f():\n    return float('nan')",
    "infinite nesting": "def f():\n    x = []\n    x.append(x)\n    return x",
    "kill itself": "import os\ndef f():\n    os.kill(os.getpid(), 9)",
    "abort": "import os\ndef f():\n    os.abort()",
    "exception that cannot be shown": (
        "class E(BaseException):\n    def __str__(self): raise self\ndef f():\n    raise E"
    ),
}


@pytest.mark.parametrize("name", ON_THE_VERDICT)
async def test_no_trick_is_accepted(
    scoring: Scoring, function_job: JobMaker, processes_of: Processes, name: str
) -> None:
    await _survives(scoring, function_job, processes_of, ON_THE_VERDICT[name])


# Attacks on resources, with the limit that stops each.
ON_RESOURCES = {
    "loop": ("def f():\n    while True: pass", {Verdict.TIME_LIMIT}),
    "loop ignoring signals": (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ndef f():\n    while True: pass",
        {Verdict.TIME_LIMIT},
    ),
    "loop in one instruction": ("def f():\n    return 9 ** 9 ** 9", {Verdict.TIME_LIMIT}),
    "loop in threads": (
        "import threading\ndef g():\n    while True: pass\n"
        "def f():\n    for _ in range(8): threading.Thread(target=g).start()\n    g()",
        {Verdict.TIME_LIMIT},
    ),
    "catastrophic pattern": (
        "import re\ndef f():\n    return bool(re.match('(a+)+$', 'a' * 40 + 'b'))",
        {Verdict.TIME_LIMIT},
    ),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(32768)\n"
        "def f():\n    for _ in range(10**6): threading.Thread(target=time.sleep, args=(9,)).start()",
        {Verdict.RUNTIME_ERROR, Verdict.TIME_LIMIT, Verdict.MEMORY_LIMIT},
    ),
    "memory bomb": (
        "def f():\n    x = []\n    while True: x.append(bytearray(1 << 20))",
        {Verdict.MEMORY_LIMIT},
    ),
    "shared memory bomb": (
        "import mmap\ndef f():\n    return [mmap.mmap(-1, 1 << 28) for _ in range(99)] and 1",
        {Verdict.RUNTIME_ERROR},
    ),
    "output flood": ("def f():\n    while True: print('x' * 999)", {Verdict.OUTPUT_LIMIT}),
    "output flood ignoring signals": (
        "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "def f():\n    while True: print('x' * 999)",
        {Verdict.OUTPUT_LIMIT},
    ),
    "sparse output": (
        "import os\ndef f():\n    os.ftruncate(1, 1 << 40)",
        {Verdict.OUTPUT_LIMIT},
    ),
    "huge result": ("def f():\n    return 'x' * 10**6", {Verdict.OUTPUT_LIMIT}),
    "stack overflow": (
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class R:\n    def __repr__(self): return repr([self])\ndef f():\n    return repr(R())",
        {Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT, Verdict.TIME_LIMIT},
    ),
    "bomb in a constant": (
        "def f():\n    return " + "[" * 90 + "0" + "]" * 90,
        {Verdict.WRONG_ANSWER},
    ),
}


@pytest.mark.parametrize("name", ON_RESOURCES)
async def test_a_limit_stops_what_takes_too_much(
    scoring: Scoring, function_job: JobMaker, processes_of: Processes, name: str
) -> None:
    code, verdicts = ON_RESOURCES[name]
    # Where it is another limit that stops the attack, processor time must not run out before.
    cpu_s = 0.3 if Verdict.TIME_LIMIT in verdicts else 10.0
    verdict = await _survives(scoring, function_job, processes_of, code, cpu_s)
    assert verdict in verdicts


async def test_a_process_that_idles_is_stopped_by_the_clock(
    scoring: Scoring,
    function_job: JobMaker,
    processes_of: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "_machine_is_contended", lambda: False)
    idlers = [
        "import time\ndef f():\n    time.sleep(999)",
        "import os\ndef f():\n    os.kill(os.getpid(), 19)  # SIGSTOP",
        "import signal\nsignal.pthread_sigmask(0, range(1, 65))\ndef f():\n    signal.pause()",
    ]
    before = processes_of(scoring)
    jobs = [function_job(code, [([], SECRET)], cpu_s=0.1) for code in idlers]
    scores = await asyncio.wait_for(scoring.score(jobs), 300)
    assert {score.verdict for score in scores} == {Verdict.TIME_LIMIT}, scores
    assert all(score.seconds > 2.0 for score in scores)
    assert processes_of(scoring) == before


async def test_nothing_is_left_behind_by_a_long_hostile_run(
    scoring: Scoring, function_job: JobMaker, processes_of: Processes
) -> None:
    before, files = processes_of(scoring), len(os.listdir("/proc/self/fd"))
    jobs = [
        function_job(f"{code}\n# {round_}", [([], SECRET)], cpu_s=0.3, memory_mb=96)
        for round_ in range(4)
        for code in (*ON_THE_VERDICT.values(), ON_RESOURCES["memory bomb"][0])
    ]
    scores = await asyncio.wait_for(scoring.score(jobs), 120)
    assert not any(score.verdict in (Verdict.ACCEPTED, Verdict.INFRA_ERROR) for score in scores)
    assert processes_of(scoring) == before
    assert len(os.listdir("/proc/self/fd")) <= files


def _on_disk() -> list[str]:
    return [path for path in ON_DISK if os.path.exists(path)]


async def _survives(
    scoring: Scoring,
    function_job: JobMaker,
    processes_of: Processes,
    code: str,
    cpu_s: float = 0.3,
) -> Verdict:
    """Run an attack; it must earn nothing, leave nothing and hinder nobody."""
    before = processes_of(scoring)
    honest = function_job(f"def f(a, b):\n    return a + b  # beside {hash(code)}")
    attack = function_job(code, [([], SECRET)], cpu_s=cpu_s, memory_mb=96)
    score, neighbour = await asyncio.wait_for(scoring.score([attack, honest]), 300)
    assert score.verdict not in (
        Verdict.ACCEPTED,
        Verdict.INFRA_ERROR,
        Verdict.CRASHED_SANDBOX,
    ), score
    assert score.reward == 0.0
    assert code.count(str(SECRET)) or str(SECRET) not in score.detail
    assert neighbour.verdict is Verdict.ACCEPTED
    assert processes_of(scoring) == before
    return score.verdict
