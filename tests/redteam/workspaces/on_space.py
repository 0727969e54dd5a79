"""Attacks on what a workspace is given: processes, memory, disk, names, descriptors, time, output.

Each runs only below hard limits: 32 processes, 128 MiB of memory, 16 MiB of files, two seconds.
"""

# ruff: noqa: E501 - an attack a line

from dataclasses import dataclass

from services.protocol.reward.workspaces import ExecCall, OpenWorkspace

SPEC = OpenWorkspace(memory_mb=128, disk_mb=16, processes=32)
WALL_S, CPU_S, OUTPUT_KB = 2.0, 1.0, 64
LIMITS = frozenset(
    ("time_limit", "memory_limit", "output_limit", "disk_limit", "process_limit", "failed")
)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """A program that takes all that it can get.

    Attributes:
        shell: a line for the shell; or
        python: a program for Python.
        ends: the statuses that are right.
    """

    shell: str | None = None
    python: str | None = None
    ends: frozenset[str] = LIMITS

    def call(self, interpreter: str) -> ExecCall:
        """The call that tries it."""
        argv = None if self.python is None else [interpreter, "-c", self.python]
        return ExecCall(
            argv=argv, shell=self.shell, wall_s=WALL_S, cpu_s=CPU_S, output_kb=OUTPUT_KB
        )


def _shell(line: str, *ends: str) -> Flood:
    return Flood(shell=line, ends=frozenset(ends) or LIMITS)


def _python(code: str, *ends: str) -> Flood:
    return Flood(python=code, ends=frozenset(ends) or LIMITS)


_OK = "ok"

PROCESSES = {
    "fork bomb": _shell("b() { b | b & }; b; sleep 9"),
    "fork bomb in Python": _python(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ),
    "children that are never waited for": _python(
        "import os\nfor _ in range(999):\n    if os.fork() == 0: os._exit(0)"
    ),
    "threads": _python(
        "import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()"
    ),
    "sleepers that nobody waits for": _shell(
        "for n in $(seq 20); do sleep 999 & done; exit 0", _OK, "process_limit"
    ),
    "a daemon": _python(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: time.sleep(1)\n    os._exit(0)",
        _OK,
    ),
    "a daemon that holds its output": _shell(
        "(trap '' HUP INT TERM QUIT; sleep 999) & exit 0", _OK
    ),
    "ignores every signal": _python(
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: signal.pause()",
        "time_limit",
    ),
    "stops itself": _shell("kill -STOP $$", "time_limit", "failed"),
    "waits for input": _shell("read line; cat; exec cat", _OK, "failed"),
    "waits for a terminal": _shell("cat < /dev/tty", "failed"),
    "sleeps": _shell("sleep 999", "time_limit"),
    "loops": _shell("while :; do :; done", "time_limit"),
    "loops in children": _python(
        "import os\nfor _ in range(4): os.fork()\nwhile True: pass", "time_limit"
    ),
    "one after the other": _python(
        "import os, time\nwhile True:\n    if os.fork(): os._exit(0)",
        _OK,
        "time_limit",
        "failed",
        "process_limit",
    ),
}

MEMORY = {
    "one process": _python("x = bytearray(1 << 29)", "failed", "memory_limit"),
    "bit by bit": _python(
        "x = []\nwhile True: x.append(bytearray(1 << 20))", "failed", "memory_limit"
    ),
    "many processes": _python(
        "import os, time\nfor _ in range(7):\n    if os.fork() == 0: break\nx = bytearray(b'x' * (50 << 20))\ntime.sleep(9)",
        "memory_limit",
    ),
    "shared memory": _python(
        "import mmap, time\nx = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 24)\n    m.write(b'x' * (1 << 24))\n    x.append(m)",
        "failed",
        "memory_limit",
    ),
    "shared by children": _python(
        "import mmap, os, time\nm = mmap.mmap(-1, 60 << 20)\nm.write(b'x' * (60 << 20))\nfor _ in range(6): os.fork()\nm[:] = b'y' * len(m)\ntime.sleep(0.1)",
        _OK,
        "failed",
        "memory_limit",
        "process_limit",
        "time_limit",
    ),
    "memory files": _python(
        "import os\nkept = []\nwhile True:\n    fd = os.memfd_create('x')\n    kept.append(fd)\n    for _ in range(16): os.write(fd, bytes(1 << 20))",
        "failed",
        "memory_limit",
        "disk_limit",
    ),
    "pipes full of bytes": _python(
        "import os\nwhile True:\n    r, w = os.pipe()\n    os.set_blocking(w, False)\n    try: os.write(w, bytes(1 << 20))\n    except OSError: pass",
        "failed",
    ),
    "sockets full of bytes": _python(
        "import os, socket\nkept = []\nwhile True:\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    kept += [a, b]\n    try:\n        while True: a.send(bytes(1 << 16))\n    except BlockingIOError: pass",
        "failed",
        "memory_limit",
    ),
    "locked memory": _python(
        "import ctypes\nx = bytearray(1 << 26)\nraise SystemExit(ctypes.CDLL(None).mlockall(3) == 0)",
        _OK,
        "failed",
    ),
    "deep stacks": _python(
        "import threading\nthreading.stack_size(1 << 26)\nfor _ in range(30): threading.Thread(target=threading.Event().wait, daemon=True).start()\nprint(1)",
        _OK,
        "failed",
        "memory_limit",
        "process_limit",
    ),
}

DISK = {
    "a file without an end": _shell("cat /dev/zero > zeros", "disk_limit", "failed"),
    "files in the shared folder": _shell("cat /dev/zero > /tmp/zeros", "disk_limit", "failed"),
    "files in memory": _shell(
        "cat /dev/zero > /dev/shm/zeros", "disk_limit", "memory_limit", "failed"
    ),
    "a hole": _python(
        "import os\nfd = os.open('hole', os.O_CREAT | os.O_RDWR)\nos.ftruncate(fd, 1 << 44)",
        _OK,
        "disk_limit",
        "failed",
    ),
    "reserved": _python(
        "import os\nfd = os.open('big', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(fd, 0, 1 << 33)",
        "disk_limit",
        "failed",
    ),
    "names without an end": _python(
        "import os\nfor n in range(10**7): os.close(os.open(f'n{n}', os.O_CREAT))",
        "disk_limit",
        "failed",
        "time_limit",
        "memory_limit",
    ),
    "folders in folders": _python(
        "import os\nfor n in range(10**6):\n    os.mkdir('d')\n    os.chdir('d')",
        "disk_limit",
        "failed",
        "time_limit",
        "memory_limit",
    ),
    "links": _python(
        "import os\nopen('one', 'w')\nfor n in range(10**6): os.link('one', f'l{n}')",
        "disk_limit",
        "failed",
        "time_limit",
        "memory_limit",
    ),
    "links in a circle": _shell(
        "ln -s b a; ln -s a b; ln -s . self; ln -s ../../../../etc out; ln -s /proc/self/root root; echo made",
        _OK,
    ),
    "files that are deleted and open": _python(
        "import os\nkept = []\nfor n in range(999):\n    fd = os.open('gone', os.O_CREAT | os.O_RDWR)\n    os.unlink('gone')\n    kept.append(fd)\n    os.write(fd, bytes(1 << 20))",
        "disk_limit",
        "failed",
    ),
    "attributes": _python(
        "import os\nopen('f', 'w')\nfor n in range(99999): os.setxattr('f', f'user.{n}', bytes(4096))",
        _OK,
        "disk_limit",
        "failed",
        "memory_limit",
    ),
    "modes that lock everybody out": _python(
        "import os\nos.mkdir('shut')\nopen('shut/in', 'w')\nos.chmod('shut/in', 0)\nos.chmod('shut', 0)",
        _OK,
        "failed",
    ),
    "names that are no text": _python(
        "import os\nopen(b'\\xff\\xfe', 'w')\nopen('a\\nb', 'w')\nopen('-rf', 'w')\nopen(' ', 'w')",
        _OK,
    ),
    "devices, pipes and sockets": _python(
        "import os, socket\nos.mkfifo('pipe')\ntry: socket.socket(socket.AF_UNIX).bind('sock')\nexcept OSError: pass\ntry: os.mknod('device', 0o20600, os.makedev(1, 1))\nexcept OSError: pass",
        _OK,
        "failed",
    ),
}

DESCRIPTORS = {
    "descriptors": _python("import os\nwhile True: os.dup(0)", "failed"),
    "descriptors in every child": _python(
        "import os\nfor _ in range(5): os.fork()\ntry:\n    while True: os.dup(0)\nexcept OSError: pass",
        _OK,
        "failed",
        "process_limit",
    ),
    "descriptors on their way": _python(
        "import socket\nkept = []\nwhile True:\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    kept += [a, b]\n    try:\n        while True: socket.send_fds(a, [b'x'], [0] * 200)\n    except (BlockingIOError, OSError): pass",
        "failed",
        "time_limit",
    ),
}

OUTPUT = {
    "without an end": _shell("yes", "output_limit"),
    "errors without an end": _shell("yes >&2", "output_limit"),
    "both": _shell("yes & yes >&2", "output_limit"),
    "from children": _shell("for n in $(seq 9); do yes & done; wait", "output_limit"),
    "not text": _shell("head -c 60000 /dev/urandom", _OK),
    "no newline": _shell("head -c 60000 /dev/zero", _OK),
    "byte by byte": _python(
        "import os\nwhile True: os.write(1, b'x')", "output_limit", "time_limit"
    ),
}

FLOODS = {
    f"{family}: {name}": flood
    for family, floods in (
        ("processes", PROCESSES),
        ("memory", MEMORY),
        ("disk", DISK),
        ("descriptors", DESCRIPTORS),
        ("output", OUTPUT),
    )
    for name, flood in floods.items()
}
