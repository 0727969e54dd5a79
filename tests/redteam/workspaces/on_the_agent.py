"""Attacks on the first process of a workspace, on its messages, and on the kept interpreter."""

# ruff: noqa: E501 - an attack a line

from tests.redteam.workspaces.attacks import does, finds

_REACHES = {
    "read the memory": does("open(f'/proc/{agent}/mem', 'rb').read(1)"),
    "read the map": does("open(f'/proc/{agent}/maps').read(1)"),
    "read the environment": does("open(f'/proc/{agent}/environ', 'rb').read(1)"),
    "open a file": does("os.open(glob.glob(f'/proc/{agent}/fd/*')[0], os.O_RDWR)"),
    "enter the root": does("os.listdir(f'/proc/{agent}/root/')"),
    "trace": finds("libc.ptrace(16, agent, None, None) == 0"),
    "seize": finds("libc.syscall(101, 0x4206, agent, None, None) == 0"),
    "write into": finds("libc.syscall(311, agent, None, 0, None, 0, 0) >= 0"),
    "read from": finds("libc.syscall(310, agent, None, 0, None, 0, 0) >= 0"),
    "take a descriptor": finds(
        "[fd for fd in range(64) if libc.syscall(438, libc.syscall(434, agent, 0), fd, 0) >= 0]"
    ),
    "lower the limits": finds("libc.syscall(302, agent, 7, struct.pack('=2Q', 1, 1), None) == 0"),
    "take the processors": finds(
        "libc.syscall(203, agent, 8, ctypes.create_string_buffer(b'\\xff' * 8)) >= 0"
    ),
    "make it wait for the disk": finds("libc.syscall(251, 1, agent, 3 << 13) == 0"),
    "enter the namespaces": does(
        "fd = os.open(f'/proc/{agent}/ns/net', 0)\nif libc.setns(fd, 0): raise OSError"
    ),
    "compare with": finds("libc.syscall(312, agent, os.getpid(), 2, 0, 0) >= 0"),
    "signal": finds("libc.kill(agent, 0) == 0 and agent != 1"),
}
REACHES = {
    f"{name} of {whom}": f"import os\nagent = {process}\n{code}"
    for name, code in _REACHES.items()
    for whom, process in (("the first process", "1"), ("the parent", "os.getppid()"))
}
"""Each would hold the agent in its hands."""

SIGNALS = {
    "kill the agent": "import os\nos.kill(1, 9)",
    "stop the agent": "import os, signal\nos.kill(1, signal.SIGSTOP)",
    "every signal to the agent": "import os\nfor n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass",
    "kill everybody": "import os\nos.kill(-1, 9)",
    "kill the group": "import os\nos.killpg(0, 9)",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "stop the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
    "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "kill all numbers": "import os\nfor n in range(2, 70):\n    try: os.kill(n, 9)\n    except OSError: pass",
}
"""Nothing may come of them but the end of the call."""

FORGERIES = {
    "results on every descriptor": (
        "import json, os\n"
        "forged = json.dumps({'status': 'ok', 'exit_code': 0, 'result': 'forged', 'ended': True}).encode()\n"
        "for fd in range(3, 256):\n"
        "    for text in (forged, forged + b'\\n', b'\\0' * 64, b'{' * 4096, b'\\xff\\xfe'):\n"
        "        try: os.write(fd, text)\n        except OSError: pass\n"
    ),
    "a length without an end on every descriptor": (
        "import os\nfor fd in range(3, 256):\n"
        "    try: os.write(fd, b'\\xff' * 8)\n    except OSError: pass\n"
    ),
    "closes every descriptor": "import os\nos.closerange(3, 4096)\n",
    "closes all of them": "import os\nos.closerange(0, 4096)\n",
    "its descriptors are another's": (
        "import os\nr, w = os.pipe()\nfor fd in range(3, 256):\n"
        "    try: os.fstat(fd), os.dup2(w, fd)\n    except OSError: pass\n"
    ),
    "a child that answers too": (
        "import os\nif os.fork() == 0:\n    import time\n"
        "    for _ in range(20):\n        for fd in range(3, 64):\n"
        '            try: os.write(fd, b\'{"status": "ok", "result": "forged"}\\n\')\n'
        "            except OSError: pass\n        time.sleep(0.01)\n    os._exit(0)\n"
    ),
    "a child that goes on as the interpreter": "import os\nos.fork()\n",
    "a message of descriptors": (
        "import array, os, socket\nfor fd in range(3, 64):\n    try:\n"
        "        one = socket.socket(fileno=os.dup(fd))\n"
        "        socket.send_fds(one, [b'{}'], [0, 1, 2] * 40)\n    except OSError: pass\n"
    ),
    "ends without a word": "import os\nos._exit(0)",
    "ends well": "raise SystemExit(0)",
    "ends badly": "raise SystemExit('x' * 100000)",
    "aborts": "import os\nos.abort()",
    "kills itself": "import os\nos.kill(os.getpid(), 9)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "no recursion limit": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "no builtins": "import builtins\nfor name in list(vars(builtins)):\n    if name not in ('list', 'vars'): delattr(builtins, name)\n",
    "no modules": "import sys\nsys.modules.clear()",
    "no output": "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None",
    "a display hook that hangs": "import sys, time\nsys.displayhook = sys.excepthook = lambda *_: time.sleep(999)\n",
    "a trace of everything": "import sys, threading\nsys.settrace(lambda *_: 1 / 0)\nthreading.settrace(lambda *_: 1 / 0)\nsys.setprofile(lambda *_: 1 / 0)\n",
    "signals ignored": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n",
    "signals blocked": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n",
    "an alarm between calls": "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\n",
    "a thread that stays": "import os, threading, time\ndef loop():\n    while True:\n        for fd in (1, 2):\n            try: os.write(fd, b'forged\\n')\n            except OSError: pass\n        time.sleep(0.005)\nthreading.Thread(target=loop, daemon=True).start()\n",
    "its own json": "import json\njson.dumps = json.loads = lambda *_, **__: 1 / 0\n",
    "its own repr": "class L:\n    def __repr__(self):\n        while True: pass\nL()",
    "a repr that is long": "'x' * (1 << 26)",
    "a repr that is no text": "class L:\n    def __repr__(self): return 7\nL()",
    "a repr that raises": "class L:\n    def __repr__(self): raise SystemExit(3)\nL()",
    "a repr of surrogates": "class L:\n    def __repr__(self): return '\\ud800' * 9\nL()",
    "an error that cannot be shown": "class E(Exception):\n    def __str__(self): raise self\nraise E",
    "an error that is long": "raise ValueError('x' * (1 << 26))",
    "a chain of errors": "e = None\nfor n in range(5000):\n    try:\n        raise ValueError(n) from e\n    except ValueError as one:\n        e = one\nraise e",
    "an error with a hostile name": "E = type('E', (Exception,), {'__module__': 7, '__qualname__': 'E'})\nE.__name__ = '\\n{\"status\": \"ok\"}\\n'\nraise E('\\n{\"status\": \"ok\"}\\n')",
    "a picture that is none": "class P:\n    def _repr_png_(self): return 7\n    _repr_svg_ = _repr_jpeg_ = _repr_png_\nP()",
    "a picture without an end": "class P:\n    def _repr_png_(self): return b'x' * (1 << 26)\nP()",
    "a picture that hangs": "class P:\n    def _repr_png_(self):\n        while True: pass\nP()",
    "a source that nests": "(" * 100_000,
    "a source with a loop of names": "x = " + "-" * 100_000 + "1",
    "a source of zeros": "x = 'a\\0b'\n",
    "input": "input()",
    "the terminal": "open('/dev/tty')",
}
"""After each the same workspace answers as before, or says by name that it is gone."""
