"""Right, wrong and hostile answers of every kind of task, as many as wanted."""

import itertools
import platform
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from services.protocol.reward.grader import AnyGrader, Grader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from tests.redteam.attack import SECRET, Attack
from tests.redteam.on_resources import ON_RESOURCES
from tests.redteam.on_the_compiler import SOURCE_ATTACKS
from tests.redteam.on_the_machine import FILES, SYSTEM_CALLS
from tests.redteam.on_the_verdict import IN_A_FUNCTION, IN_A_PROGRAM
from tests.redteam.test_reward_hacks import HACKS, KINDS
from tests.reward_service.test_checker_failures import ANY_DIVISOR, FAILURES, FRAGILE
from tests.reward_service.test_sleepers import SLEEP, SLEEP_IN_CALL, STOP, asserts, calls, programs

_GRADER: TypeAdapter[AnyGrader] = TypeAdapter(Grader)
_SHORT = {"cpu_s": 0.15, "memory_mb": 96}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer of the mixture.

    Attributes:
        name: what it is, for a failure's message.
        job: with a grader.
        right: it has to be accepted; any other has to earn 0.
    """

    name: str
    job: ScoreJob
    right: bool = False


def mixture(count: int, *, seed: int, compiled: bool) -> list[Answer]:
    """Half of them hostile, a quarter right and a quarter wrong, in any order.

    Every family of attacks and every kind of task is in it. No two have the same code, so that
    no verdict is taken from the cache.

    Args:
        count: of answers.
        seed: of their choice and order.
        compiled: C++ is among them.
    """
    chance = random.Random(seed)
    families = [list(family) for family in _hostile(compiled=compiled)]
    for family in families:
        chance.shuffle(family)
    hostile = itertools.islice(_in_turns(families), count // 2)
    tasks = itertools.cycle([task for task in TASKS if compiled or task != "a compiled program"])
    honest = (_honest(next(tasks), right=number % 2 == 0) for number in range(count - count // 2))
    found = [*hostile, *honest]
    chance.shuffle(found)
    return [_numbered(answer, number) for number, answer in enumerate(found)]


def is_fair(answer: Answer, verdict: Verdict, reward: float | None) -> bool:
    """Whether a right answer was accepted, or any other earned nothing by a verdict of its own."""
    if answer.right:
        return (verdict, reward) == (Verdict.ACCEPTED, 1.0)
    none = (Verdict.ACCEPTED, Verdict.INFRA_ERROR, Verdict.CRASHED_SANDBOX)
    return reward == 0.0 and verdict not in none


def long_answers() -> list[Answer]:
    """Hostile ones whose text or result takes long to look at."""
    boxes, fences = "\\boxed{" * 14_000, "```python\n" * 10_000
    sets = f"def f(x):\n    m, n = {sys.hash_info.modulus}, 20_000\n"
    sets += "    return [frozenset({5 + m * k, 6 + m * k}) for k in range(n)]"
    alike = "def f(x):\n    return {5 + (2**61 - 1) * k: None for k in range(3_000)}"
    large = {"limits": {"cpu_s": 1.0, "output_kb": 65_536}}
    return [
        Answer(name=f"long: {name}", job=_numbered(Answer(name="", job=job), number).job)
        for number, (name, job) in enumerate(
            {
                "boxes": _job(boxes, kind="maths", expected="42"),
                "boxes, strictly": _job(boxes, kind="maths", expected="42", strict=True),
                "boxes and a form": _job(boxes, kind="format", boxed=True),
                "fences": _runs(fences),
                "sets that share a hash": _calls(sets, **large),
                "keys that share a hash": _calls(alike, **large),
                "a long text": _calls("def f(x):\n    return '(' * 5_000_000", **large),
                "many words": _runs("print('1 ' * 5_000_000)", **large),
            }.items(),
            10_000,
        )
    ]


def _in_turns(families: list[list[Answer]]) -> Iterator[Answer]:
    """One of each family after the other, for ever."""
    for place in itertools.count():
        yield from (family[place % len(family)] for family in families)


def _numbered(answer: Answer, number: int) -> Answer:
    """The answer with a name of its own, and as code that no other has."""
    job = answer.job
    mark = {"code": "\n# {}", "python_asserts": "\n# {}"}.get(job.grader.kind, "")
    if getattr(job.grader, "language", "python") != "python":
        mark = "\n// {}"
    completion = job.completion.replace("\n```\n", f"{mark.format(number)}\n```\n")
    if completion == job.completion:
        completion += mark.format(number)
    job = ScoreJob(job_id=str(number), completion=completion, grader=job.grader)
    return Answer(name=answer.name, job=job, right=answer.right)


def _job(completion: str, **grader: Any) -> ScoreJob:
    return ScoreJob(job_id="", completion=completion, grader=_GRADER.validate_python(grader))


def _runs(code: str, **grader: Any) -> ScoreJob:
    tests = [{"stdin": f"{n}\n", "expected": f"{SECRET + n}\n"} for n in range(3)]
    return _job(code, kind="code", **{"tests": tests, "policy": "fraction", **grader})


def _calls(code: str, **grader: Any) -> ScoreJob:
    tests = [{"args": [n], "expected": SECRET + n} for n in range(3)]
    given = {"tests": tests, "entry_point": "f", "policy": "fraction", **grader}
    return _job(code, kind="code", **given)


def _compiled(code: str) -> ScoreJob:
    return _runs(f"```cpp\n{code}\n```\n", language="cpp17")


def _checked(code: str, source: str = FRAGILE, **grader: Any) -> ScoreJob:
    tests = [{"stdin": "91\n", "expected": "7"}] * 3
    checker = {"kind": "custom", "source": source}
    return _runs(code, **{"tests": tests, "checker": checker, **grader})


TASKS: dict[str, tuple[Callable[[str], ScoreJob], str, str]] = {
    "a program": (
        _runs,
        f"print({SECRET} + int(input()))",
        f"print({SECRET} - int(input()) - 1)",
    ),
    "calls": (_calls, f"def f(x):\n    return {SECRET} + x", "def f(x):\n    return x"),
    "asserts taken apart": (
        lambda code: _job(
            code,
            kind="python_asserts",
            tests=[f"assert abs(f({n}) - {SECRET + n}) < 0.5" for n in range(3)],
        ),
        f"def f(x):\n    return {SECRET} + x",
        "def f(x):\n    return None",
    ),
    "asserts in a jail": (
        lambda code: _job(
            code,
            kind="python_asserts",
            tests=[f"for x in (1, 2):\n    assert f(x) == {SECRET} + x"],
        ),
        f"def f(x):\n    return {SECRET} + x",
        "def f(x):\n    raise ValueError(x)",
    ),
    "a checker": (_checked, "print(7)", "print(8)"),
    "a checker of the docs": (lambda code: _checked(code, ANY_DIVISOR), "print(13)", "print(9)"),
    "a checker of results": (
        lambda code: _calls(code, checker={"kind": "custom", "source": FRAGILE}),
        f"def f(x):\n    return {SECRET} + x",
        "def f(x):\n    return 8",
    ),
    "a compiled program": (
        _compiled,
        "#include <cstdio>\nint main() { long n; "
        f'scanf("%ld", &n); printf("%ld", {SECRET} + n); }}',
        '#include <cstdio>\nint main() { puts("0"); }',
    ),
    "a text": (lambda text: _job(text, kind="exact", expected="Paris"), "Paris", "Rome"),
    "a pattern": (
        lambda text: _job(text, kind="exact", expected="b", pattern="(?:a+)+(b)$"),
        "aaab",
        "aaac",
    ),
    "maths": (
        lambda text: _job(text, kind="maths", expected="(x+1)^2"),
        r"\boxed{x^2+2x+1}",
        r"\boxed{x^2}",
    ),
    "a function of the user's": (
        lambda text: _job(text, kind="python", name="number", timeout_s=2.0),
        "1",
        "0",
    ),
}
"""How a job of each kind of task is made of an answer, a right answer and a wrong one."""


def _honest(task: str, *, right: bool) -> Answer:
    make, good, bad = TASKS[task]
    word = "right" if right else "wrong"
    return Answer(name=f"{word}: {task}", job=make(good if right else bad), right=right)


def _hostile(*, compiled: bool) -> Iterator[Iterator[Answer]]:
    """Families of attacks."""
    calls_here = SYSTEM_CALLS if platform.machine() == "x86_64" else {}
    for attacks in (calls_here, FILES, IN_A_FUNCTION, IN_A_PROGRAM, ON_RESOURCES):
        yield _of(attacks)
    yield (_hack(hack, kind) for hack in HACKS for kind in KINDS)
    yield _answers("checker", {name: _checked(code) for name, (code, _) in FAILURES.items()})
    yield _answers("sleeper", SLEEPERS)
    yield _answers("text", TEXTS)
    if compiled:
        sources = {
            name: _compiled(one.code) for name, one in SOURCE_ATTACKS.items() if not one.calls
        }
        yield _answers("compiler", sources)


def _of(attacks: dict[str, Attack]) -> Iterator[Answer]:
    for name, attack in attacks.items():
        limits = {"cpu_s": attack.cpu_s, "memory_mb": 96}
        make = _runs if attack.program else _calls_without_arguments
        if not attack.costly:
            yield Answer(name=f"attack: {name}", job=make(attack.code, limits=limits))


def _calls_without_arguments(code: str, **grader: Any) -> ScoreJob:
    return _calls(code, tests=[{"args": [], "expected": SECRET}] * 3, **grader)


def _hack(hack: str, kind: str) -> Answer:
    grader = KINDS[kind]()
    grader = grader.model_copy(update={"limits": grader.limits.model_copy(update=_SHORT)})
    code = HACKS[hack] + "\nprint(f(int(input())))" * (kind == "programs")
    job = ScoreJob(job_id="", completion=code, grader=grader)
    return Answer(name=f"hack: {hack}, {kind}", job=job)


def _answers(family: str, jobs: dict[str, ScoreJob]) -> Iterator[Answer]:
    for name, job in jobs.items():
        yield Answer(name=f"{family}: {name}", job=job)


SLEEPERS = {
    f"{name}, {policy}": kind(code, name, policy)
    for policy in ("fraction", "grouped", "all")
    for name, kind, code in (
        ("a program", programs, SLEEP),
        ("a call", calls, SLEEP_IN_CALL),
        ("a stopped call", calls, STOP),
        ("asserts", asserts, SLEEP_IN_CALL),
    )
}
TEXTS = {
    "a pattern without an end": _job("a" * 60, kind="exact", expected="b", pattern="(?:a+)+(b)$"),
    "powers": _job(r"\boxed{9^{9^{9^{9}}} - x}", kind="maths", expected="x+y", timeout_s=0.5),
    "nested": _job(r"\boxed{" + "(" * 900 + "}", kind="maths", expected="x+y"),
    "no number": _job("\u00b2", kind="python", name="number", timeout_s=0.5),
    "a long number": _job("1" * 5000, kind="python", name="number", timeout_s=0.5),
    "a sleep": _job("sleep", kind="python", name="number", timeout_s=0.5),
    "an exit": _job("exit", kind="python", name="number", timeout_s=0.5),
    "not a number": _job("nan", kind="python", name="number", timeout_s=0.5),
}
