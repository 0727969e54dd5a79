"""The classic reward hacks against every kind of test, in both tiers: none earns a thing."""

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from millrace_tools.audit.tricks import PROGRAMS
from services.protocol.reward.code_graders import CodeGrader, PythonAssertsGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.scoring import Scoring
from tests.redteam.attack import SECRET

_LIAR = """
class Liar:
    __class__ = int
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = __instancecheck__ = __lt__
    def __hash__(self): return hash(7)
    def __bool__(self): return True
    def __sub__(self, other): return 0
    __rsub__ = __abs__ = __int__ = __index__ = __len__ = lambda self, *a: 0
    def __reduce__(self): return (int, (7,))
"""

HACKS = {name: f"{code}\nf = solve" for name, code in PROGRAMS.items()} | {
    "patched builtins": (
        "import builtins, os, sys\n"
        "class Never(BaseException):\n    def __new__(cls, *a): return sys.exit(0)\n"
        "builtins.AssertionError = Never\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.abs = builtins.len = builtins.hash = lambda *a: 0\n"
        "builtins.all = builtins.any = builtins.bool = lambda *a: True\n"
        "sys.excepthook = lambda *a: os._exit(0)\ndef f(x):\n    return 1"
    ),
    "reading what is expected": (
        "import gc, os, re, sys\n"
        "def f(x):\n    texts, frame = [], sys._getframe()\n"
        "    while frame:\n        texts += [repr(frame.f_locals), repr(frame.f_globals)]\n"
        "        texts += [repr(frame.f_code.co_consts)]\n        frame = frame.f_back\n"
        "    for one in gc.get_objects():\n"
        "        if type(one) in (list, tuple, dict): texts.append(repr(one))\n"
        "    for fd in range(64):\n        try: texts.append(os.pread(fd, 1 << 16, 0).decode())\n"
        "        except (OSError, ValueError): pass\n"
        "    found = re.findall(r'9182\\d+', ' '.join(texts))\n"
        "    return int(found[0]) if found else 0"
    ),
    "printing the verdict": (
        'import os\nlines = b\'\\n=\\n=\\nPASSED\\n{"verdict": "accepted", "reward": 1.0}\\n\'\n'
        "def f(x):\n    for fd in range(1, 64):\n        try: os.write(fd, lines)\n"
        "        except OSError: pass\n    os._exit(0)"
    ),
    "a loop in a destructor": (
        "class D:\n    def __del__(self):\n        while True: pass\n"
        "def f(x):\n    D()\n    return 1"
    ),
    "patched modules of the tests": (
        "import math, operator, sys\n"
        "math.isclose = operator.eq = lambda *a, **k: True\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if 'jailed' in name or name in ('unittest', 'pytest', 'tests', '__main__'):\n"
        "        for known in ('encode', 'decode', 'run_tests', '_outcome', 'serve_calls'):\n"
        "            if hasattr(module, known): setattr(module, known, lambda *a: '=')\n"
        "def f(x):\n    return 1"
    ),
    "an object that lies": f"{_LIAR}\ndef f(x):\n    return Liar()",
}

FOOL_A_COMMON_PROCESS = (
    "ends the program early",
    "ends the process at once",
    "ends when it is called",
    "prints a verdict",
    "equals everything",
    "overwrites the checker",
    "patched builtins",
    "reading what is expected",
    "an object that lies",
)

_CHECKER = {
    "kind": "custom",
    "source": "def check(given, expected, got):\n    return got == expected",
}
_CALL = {"kind": "code", "entry_point": "f", "tests": [{"args": [7], "expected": SECRET}]}
_RUN = {"kind": "code", "tests": [{"stdin": "7\n", "expected": f"{SECRET}\n"}]}

KINDS: dict[str, Callable[[], CodeGrader | PythonAssertsGrader]] = {
    "calls": lambda: CodeGrader.model_validate(_CALL),
    "calls with a checker": lambda: CodeGrader.model_validate({**_CALL, "checker": _CHECKER}),
    "programs": lambda: CodeGrader.model_validate(_RUN),
    "asserts taken apart": lambda: PythonAssertsGrader(
        kind="python_asserts", tests=[f"assert abs(f(7) - {SECRET}) < 0.5"]
    ),
    "asserts in a jail": lambda: PythonAssertsGrader(
        kind="python_asserts",
        tests=f"def check(call):\n    for x in (7, 7):\n        assert call(x) == {SECRET}",
        entry_point="f",
    ),
}
_PROGRAM = "\nprint(f(int(input())))"


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hack", HACKS)
async def test_no_hack_earns_anything_in_any_kind_of_test(
    scoring: Scoring, processes_of, hack: str, kind: str
) -> None:
    before = processes_of(scoring)
    grader = KINDS[kind]()
    grader = grader.model_copy(update={"limits": grader.limits.model_copy(update={"cpu_s": 0.3})})
    good = f"def f(x):\n    return {SECRET}"
    codes = [code + _PROGRAM * (kind == "programs") for code in (HACKS[hack], good)]
    jobs = [ScoreJob(job_id=code, completion=code, grader=grader) for code in codes]
    hacked, honest = await asyncio.wait_for(scoring.score(jobs), 600)
    assert hacked.reward == 0.0, hacked
    assert hacked.verdict not in (Verdict.ACCEPTED, Verdict.CRASHED_SANDBOX), hacked
    assert str(SECRET) not in str(hacked)
    assert honest.reward == 1.0, honest
    assert processes_of(scoring) == before


@pytest.mark.parametrize("hack", FOOL_A_COMMON_PROCESS)
def test_the_hacks_are_real_where_answer_and_assert_share_a_process(hack: str) -> None:
    """As graders that look at the exit status run them; so that a harmless hack would be seen."""
    source = f"{HACKS[hack]}\nassert f(7) == {SECRET}\n"
    script = f"exec(compile({source!r}, 'x', 'exec'), {{'__name__': '__main__'}})"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
