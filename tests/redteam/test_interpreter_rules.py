"""Attacks by C++ under the rules that interpreters have: a fault of one gives an answer no more than
a program has."""

# ruff: noqa: E501 - an attack a line

import platform
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.reward.reward_service import Verdict
from services.reward_service.isolation import jail
from services.reward_service.isolation.runtimes import interpreter
from services.reward_service.languages import Language, languages
from services.reward_service.languages.language import Runtime
from services.reward_service.scoring import Scoring
from tests.redteam.attack import CANARIES
from tests.redteam.on_cpp_programs import CppAttack, program
from tests.redteam.test_cpp import chosen, got_through
from tests.redteam.test_languages import attacked


def _as_cpp(name: str) -> Language:
    """C++ whose programs run under the rules of another language: its system calls and limits."""
    runtime = languages()[name].runtime
    assert runtime is not None
    bare = Runtime(
        reserved_mb=runtime.reserved_mb,
        own_mb=runtime.own_mb,
        stack_mb=runtime.stack_mb,
        calls=runtime.calls,
    )
    sample = 'int main() { std::puts("ok"); }'
    return replace(languages()["cpp17"], name=f"cpp17_as_{name}", runtime=bare, sample=sample)


@pytest.fixture(scope="module")
def cpp_as_others() -> Iterator[list[str]]:
    """Their names; what such a language may open and start is the other's, too."""
    found = {
        name: _as_cpp(name)
        for name, one in languages().items()
        if one.runtime is not None and not one.missing()
    }
    made = jail.slot_runtimes

    def with_cpp(**places: Any) -> dict[str, dict[str, Any]]:
        facts = made(**places)
        more = {f"cpp17_as_{name}": {**facts[name], "interpreter": None} for name in found}
        return {**facts, **more}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jail, "slot_runtimes", with_cpp)
        for language in found.values():
            patched.setitem(languages(), language.name, language)
        yield [language.name for language in found.values()]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["A", "B"])
async def with_rules(request, new_scoring, cpp_as_others: list[str]) -> AsyncIterator[Scoring]:
    scoring = await new_scoring(request.param, slots=1)
    yield scoring
    scoring.close()


START = {
    "start the interpreter": CppAttack(
        body='for (const char* p : {"INTERPRETER", "/lib64/ld-linux-x86-64.so.2"}) { int d = open(p, 0);'
        'char a[] = "x", b[] = "--version"; char* v[] = {a, b, nullptr};'
        'if (d >= 0) syscall(SYS_execveat, d, "", v, nullptr, 0x1000); } return false;',
        ends=frozenset({Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR}),
    ),
    "memory that is shared": CppAttack(
        body="void* p = mmap(0, 1 << 20, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);"
        "void* q = mmap(0, 1 << 20, 1, 3 | MAP_ANONYMOUS, -1, 0); return p != MAP_FAILED || q != MAP_FAILED;",
    ),
    "memory that is a stack": CppAttack(
        body="return mmap(0, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0) != MAP_FAILED;",
    ),
    "more memory than the address space": CppAttack(
        body="long n = 1L << 32; char* p = (char*)mmap(0, n, 0, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);"
        "return p != MAP_FAILED && mprotect(p, n, 3) == 0;",
    ),
    "start another program": CppAttack(
        body='int d = open("/usr/bin/env", 0); char a[] = "x"; char* v[] = {a, nullptr};'
        'return syscall(SYS_execveat, d, "", v, nullptr, 0x1000) == 0;',
    ),
    "start a library": CppAttack(
        body='int d = open("/lib/x86_64-linux-gnu/libc.so.6", 0); char a[] = "x"; char* v[] = {a, nullptr};'
        'if (d < 0) return false; syscall(SYS_execveat, d, "", v, nullptr, 0x1000); return errno != EACCES;',
    ),
}
"""An interpreter may be started again, and stays in the same jail; nothing else may."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs g++")
@pytest.mark.asyncio(loop_scope="session")
async def test_system_calls_under_the_rules_of_an_interpreter_end_as_those_of_a_program(
    with_rules: Scoring, cpp_as_others: list[str]
) -> None:
    attacks = {**chosen(costly=False), **START}
    for name in cpp_as_others:
        runtime = languages()[name.removeprefix("cpp17_as_")].runtime
        assert runtime is not None
        tool = interpreter(runtime)
        path = "/usr/bin/env" if tool is None else tool.path
        source = program(attacks).replace("INTERPRETER", path)
        scores = await attacked(with_rules, f"```cpp\n{source}\n```", name, attacks)
        assert all(score.compile is not None and score.compile.ok for score in scores), scores
        assert got_through(attacks, scores) == [], name
        assert {score.reward for score in scores} == {0.0}
        assert not any(canary in str(scores) for canary in CANARIES.values())
