"""Attacks on time, memory and space, each with the limit that stops it."""

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import FAILS, Attack

_TIME = frozenset({Verdict.TIME_LIMIT})
_MEMORY = frozenset({Verdict.MEMORY_LIMIT})
_OUTPUT = frozenset({Verdict.OUTPUT_LIMIT})
_CPU_S = 0.15


def _runs_long(code: str, *, costly: bool = False) -> Attack:
    return Attack(code=code, ends=_TIME, cpu_s=_CPU_S, costly=costly)


def _takes_memory(code: str) -> Attack:
    return Attack(code=code, ends=_MEMORY | {Verdict.RUNTIME_ERROR})


ON_RESOURCES = {
    "loop before any call": _runs_long("while True: pass\ndef f(): pass"),
    "loop in a destructor": _runs_long(
        "class D:\n    def __del__(self):\n        while True: pass\ndef f():\n    D()",
        costly=True,
    ),
    "leader that ends before its threads": _runs_long(
        "import ctypes, threading\ndef loop():\n    while True: pass\n"
        "def f():\n    threading.Thread(target=loop).start()\n    ctypes.CDLL(None).syscall(60, 0)"
    ),
    "collisions": _runs_long(
        "class K:\n    def __hash__(self): return 1\n    def __eq__(self, o): return False\n"
        "def f():\n    d = {K(): 1 for _ in range(10**6)}",
        costly=True,
    ),
    "generator without an end": _runs_long(
        "import itertools\ndef f():\n    return sum(itertools.repeat(1))"
    ),
    "system calls without an end": _runs_long(
        "import os\ndef f():\n    while True: os.getppid()", costly=True
    ),
    "a string of a terabyte": _takes_memory("def f():\n    return 'x' * (1 << 40)"),
    "a range as a list": _takes_memory("def f():\n    return list(range(10**10))"),
    "a bomb of zeros": _takes_memory(
        "import zlib\nbomb = zlib.compress(bytes(1 << 24), 9)\n"
        "def f():\n    return [zlib.decompress(bomb) for _ in range(99)]"
    ),
    "a bomb of bombs": _takes_memory("def f():\n    x = 'x'\n    while True: x += x"),
    "a private map": _takes_memory(
        "import mmap\ndef f():\n    return mmap.mmap(-1, 1 << 32, flags=mmap.MAP_PRIVATE)"
    ),
    "stacks of threads": Attack(
        code="import threading\nthreading.stack_size(1 << 26)\n"
        "def f():\n    for _ in range(99): threading.Thread(target=threading.Event().wait).start()",
        ends=FAILS | _MEMORY,
    ),
    "pipes full of bytes": Attack(
        code="import os\ndef f():\n    while True:\n        r, w = os.pipe()\n"
        "        os.set_blocking(w, False)\n        os.write(w, bytes(1 << 20))",
        ends=FAILS,
    ),
    "descriptors": Attack(code="import os\ndef f():\n    while True: os.dup(0)", ends=FAILS),
    "larger pipes": Attack(
        code="import fcntl, os\ndef f():\n    fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)\n"
        "    return 918273645",
        ends=FAILS,
    ),
    "far end of its output": Attack(
        code="import os\ndef f():\n    os.lseek(1, 1 << 40, 0)\n    os.write(1, b'x')", ends=_OUTPUT
    ),
    "far end of its errors": Attack(
        code="import os\ndef f():\n    os.pwrite(2, b'x', 1 << 40)", ends=_OUTPUT
    ),
    "flood of errors": Attack(
        code="import sys\ndef f():\n    while True: sys.stderr.write('x' * 9999)", ends=_OUTPUT
    ),
    "flood of reports": Attack(
        code="import os\ndef f():\n    while True: os.write(3, b'x' * 9999)", ends=_OUTPUT
    ),
    "reserved output": Attack(
        code="import os\ndef f():\n    os.posix_fallocate(1, 0, 1 << 30)",
        ends=_OUTPUT | FAILS,
    ),
    "stack of a program": Attack(
        code="import re\ndef f():\n    x = ()\n    for _ in range(10**6): x = (x,)\n    return x",
        ends=FAILS | _MEMORY | _OUTPUT,
    ),
    "endless message": Attack(
        code="def f():\n    raise ValueError('x' * (1 << 24))", ends=FAILS | _OUTPUT | _MEMORY
    ),
    "fault in a loop": Attack(
        code="import signal, ctypes\nsignal.signal(signal.SIGSEGV, lambda *_: None)\n"
        "def f():\n    ctypes.string_at(0)",
        ends=_TIME | FAILS,
        cpu_s=_CPU_S,
    ),
}
