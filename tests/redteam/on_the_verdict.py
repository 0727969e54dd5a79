"""Attacks on the verdict: nobody knows the expected number, everybody wants to be accepted."""

# ruff: noqa: E501 - an attack a line

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import Attack

_WRONG = frozenset({Verdict.WRONG_ANSWER})
_ERROR = frozenset({Verdict.RUNTIME_ERROR})
_NOT_RUN = frozenset({Verdict.RUNTIME_ERROR, Verdict.COMPILE_ERROR, Verdict.MEMORY_LIMIT})


def value(code: str) -> Attack:
    """An answer whose `f` returns a trick."""
    return Attack(code=code, ends=_WRONG | _ERROR)


def program(code: str) -> Attack:
    """A program whose output is a trick."""
    return Attack(code=code, ends=_WRONG | _ERROR, program=True)


IN_A_FUNCTION = {
    "lies about its class": value(
        "class L:\n    __class__ = int\n    def __int__(self): return 1\n    __index__ = __int__\n"
        "    def __eq__(self, o): return True\n    def __hash__(self): return 0\n"
        "def f():\n    return L()"
    ),
    "class of classes": value(
        "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\n"
        "    def __instancecheck__(c, o): return True\nclass L(int, metaclass=M): pass\n"
        "def f():\n    return L(3)"
    ),
    "sequence that shows something else": value(
        "class L(list):\n    def __iter__(self): return iter([])\n    def __len__(self): return 0\n"
        "    def __eq__(self, o): return True\ndef f():\n    return L([1])"
    ),
    "descriptor as encoder": value(
        "import sys\nm = sys.modules['services.reward_service.jailed.codec']\n"
        "m.encode = lambda v: '*'\nsys.modules['services.reward_service.jailed.answer'].encode = "
        "m.encode\ndef f():\n    return 1"
    ),
    "its own reporter": value(
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "    if 'report' in frame.f_locals: frame.f_locals['report']('=', 'null')\n"
        "    frame = frame.f_back\ndef f():\n    import os\n    os._exit(0)"
    ),
    "a report before its time": value(
        "import os\nos.write(3, b'=1\\n=1\\n=1\\n')\ndef f():\n    os._exit(0)"
    ),
    "a report without an end": value("import os\ndef f():\n    os.write(3, b'=')\n    os._exit(0)"),
    "a report of zeros": value(
        "import os\ndef f():\n    os.write(3, b'\\0' * 4096)\n    os._exit(0)"
    ),
    "a report that is not text": value(
        "import os\ndef f():\n    os.write(3, b'=\\xff\\xfe\\n')\n    os._exit(0)"
    ),
    "a report that nests": value(
        "import os\ndef f():\n    os.write(3, b'=' + b'[' * 100000 + b'\\n')\n    os._exit(0)"
    ),
    "a number too long to read": Attack(
        code="import os\ndef f():\n    os.write(3, b'=' + b'9' * 400000 + b'\\n')\n    os._exit(0)",
        ends=_WRONG | _ERROR | {Verdict.OUTPUT_LIMIT},
    ),
    "alarm that ends well": value(
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001)\ndef f():\n    signal.pause()"
    ),
    "hook on exceptions": value(
        "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef f():\n    raise ValueError"
    ),
    "exit function": value(
        "import atexit, os\natexit.register(os._exit, 0)\ndef f():\n    return 1"
    ),
    "thread that ends the process": value(
        "import os, threading\nthreading.Thread(target=os._exit, args=(0,)).start()\n"
        "def f():\n    threading.Event().wait()"
    ),
    "trace of the caller": value(
        "import sys\ndef spy(frame, event, value):\n    frame.f_trace_lines = True\n    return spy\n"
        "sys.settrace(spy)\ndef f():\n    sys._getframe(1).f_trace = spy\n    return 1"
    ),
    "jump in the caller": value(
        "import ctypes, sys\ndef f():\n    caller = sys._getframe(1)\n"
        "    caller.f_locals['calls'] = []\n"
        "    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(caller), ctypes.c_int(0))\n"
        "    return 1"
    ),
    "every integer is equal": value(
        "import ctypes\nctypes.memmove(id(1) + 24, id(2) + 24, 4)\ndef f():\n    return 1"
    ),
    "generator": value("def f():\n    yield 918"),
    "coroutine": value("async def f():\n    return 918"),
    "a function of itself": value("def f():\n    return f"),
    "a module": value("import sys\ndef f():\n    return sys"),
    "surrogates": value("def f():\n    return '\\ud800' * 9"),
    "exception group": value("def f():\n    raise ExceptionGroup('x', [ValueError()])"),
    "exception with a hostile name": value(
        "class E(Exception):\n    pass\nE.__name__ = '\\n=918\\n'\n"
        "E.__qualname__ = '\\n=918\\n'\ndef f():\n    raise E('\\n=918\\n')"
    ),
    "no function": Attack(code="g = 1", ends=_ERROR | {Verdict.NO_CODE}),
    "a function that is a class": value("class f:\n    def __init__(self): pass"),
    "parser bomb": Attack(code="(" * 100_000, ends=_NOT_RUN),
    "unary bomb": Attack(code="x = " + "-" * 100_000 + "1", ends=_NOT_RUN),
    "attribute bomb": Attack(code="x" + ".x" * 100_000, ends=_NOT_RUN),
    "comparison bomb": Attack(code="x = " + "lambda: " * 20_000 + "1", ends=_NOT_RUN),
    "zeros in the source": Attack(code="x = '\0'", ends=_NOT_RUN),
}

IN_A_PROGRAM = {
    "nothing": program("pass"),
    "ends well": program("raise SystemExit(0)"),
    "a verdict": program('print(\'{"verdict": "accepted", "reward": 1.0}\')'),
    "every candidate": program("print(*range(1000), sep='\\n')"),
    "number in a row": program("print('0' * 65536)"),
    "zeros around": program("print('\\0' * 99)"),
    "moves the cursor": program("print('1\\b\\b2\\x1b[2K')"),
    "other digits": program("print('\\u0661\\uff11')"),
    "not text": program("import os\nos.write(1, b'\\xff\\xfe\\x00')"),
    "closes its output": program("import os\nos.close(1)\nos._exit(0)"),
    "output on errors": program("import sys\nprint(918, file=sys.stderr)"),
    "output is its input": program("import os\nos.dup2(0, 1)\nprint(os.pread(1, 99, 0))"),
    "reads before its input": program("import os\nos.lseek(0, 0, 0)\nprint(os.read(0, 1 << 16))"),
    "reads its report": program("import os\nprint(os.pread(3, 1 << 16, 0))"),
    "reads its output": program("import os\nprint(os.pread(1, 1 << 16, 0), os.pread(2, 99, 0))"),
    "takes its output back": program("import os\nos.write(1, b'7' * 99)\nos.ftruncate(1, 0)"),
    "exit function that prints": program("import atexit\natexit.register(print, 918)"),
    "killed after its output": Attack(
        code="import os\nprint(918, flush=True)\nos.kill(os.getpid(), 9)",
        ends=_ERROR | {Verdict.MEMORY_LIMIT},  # as the kernel kills when memory is short
        program=True,
    ),
    "crashes": program("import ctypes\nctypes.string_at(0)"),
    "destroys its memory": program("import ctypes\nctypes.memset(id(print), 255, 4096)\nprint(1)"),
}
