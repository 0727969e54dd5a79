"""Attacks by sources that a compiler reads: on the host's files, on time and memory, on `main`."""

# ruff: noqa: E501 - an attack a line

from dataclasses import dataclass

from services.protocol.reward.reward_service import Verdict
from tests.redteam.attack import SECRET

_ERROR = frozenset({Verdict.COMPILE_ERROR})
_WRONG = frozenset({Verdict.WRONG_ANSWER})
_EITHER = _ERROR | _WRONG | {Verdict.RUNTIME_ERROR, Verdict.MEMORY_LIMIT}
_MAIN = '\nint main() { puts("0"); }\n'


@dataclass(frozen=True, kw_only=True)
class SourceAttack:
    """One source.

    Attributes:
        code: C++; `CANARY` in it becomes the path of the canary.
        ends: the verdicts that are right.
        calls: it is graded by calls of `f`.
        costly: takes seconds, so it runs with `--all-attacks` only.
    """

    code: str
    ends: frozenset[Verdict] = _ERROR
    calls: bool = False
    costly: bool = False


def reads(line: str, *, costly: bool = True) -> SourceAttack:
    """A source that wants a file of the host's."""
    return SourceAttack(code=line + _MAIN, costly=costly)


def takes(code: str) -> SourceAttack:
    """A source that wants the compiler's time or memory."""
    return SourceAttack(code=code, costly=True, ends=_EITHER)


def forges(code: str, *, costly: bool = True) -> SourceAttack:
    """A source that would be its own `main`, its own report or its own end."""
    return SourceAttack(code=code, ends=_EITHER, calls=True, costly=costly)


ON_FILES = {
    "include passwords": reads('#include "/etc/passwd"'),
    "include the canary": reads('#include "CANARY"', costly=False),
    "import the canary": reads('#import "CANARY"'),
    "include its environment": reads('#include "/proc/self/environ"'),
    "include the environment of the first": reads('#include "/proc/1/environ"'),
    "include zeros": reads("#include </dev/zero>"),
    "include random bytes": reads("#include </dev/urandom>"),
    "include its input": reads("#include </dev/stdin>"),
    "include descriptors": reads("#include </proc/self/fd/3>"),
    "include a neighbour's source": reads('#include "../program"'),
    "assemble the canary": reads('asm(".incbin \\"CANARY\\"");', costly=False),
    "assemble shadow": reads('asm(".include \\"/etc/shadow\\"");'),
    "embed the canary": reads('static const char c[] = {\n#embed "CANARY"\n};'),
    "depend on the canary": SourceAttack(
        code='#pragma GCC dependency "CANARY"' + _MAIN, ends=_EITHER, costly=True
    ),
    "precompiled header elsewhere": reads('#pragma GCC pch_preprocess "CANARY"'),
    "complain in the canary's name": reads('#line 1 "CANARY"\nint x = y;', costly=False),
    "is there a canary": SourceAttack(
        code=f'#if __has_include("CANARY") || __has_include("/etc/passwd")\nint s = {SECRET};\n#else\nint s = 0;\n#endif\n'
        'int main() { printf("%d\\n", s); }',
        # Tier B shows that a path is there: the compiler stops, since it cannot open it.
        ends=_ERROR | _WRONG,
        costly=True,
    ),
    "a plugin by pragma": SourceAttack(
        code='#pragma GCC optimize ("-fplugin=/tmp/x.so")\n#pragma GCC plugin "/tmp/x.so"' + _MAIN,
        ends=_EITHER,
        costly=True,
    ),
    "flags for the linker": SourceAttack(
        code='#pragma comment(linker, "-T/etc/passwd")\nasm(".section .drectve\\n.ascii \\"-T/etc/passwd\\"\\n.text");'
        + _MAIN,
        ends=_EITHER,
        costly=True,
    ),
    "an interpreter of its own": SourceAttack(
        code='const char i[] __attribute__((section(".interp"))) = "/etc/passwd";' + _MAIN,
        ends=_EITHER,
        costly=True,
    ),
    # Without the linker's plugin these are sections like others, and the program is a wrong answer.
    "another compiler for the linker to start": SourceAttack(
        code='asm(".section .gnu.lto_.opts,\\"e\\",@progbits\\n.string \\"-O2\\"\\n'
        '.section .gnu.lto_.symtab.1,\\"e\\",@progbits\\n.quad 1\\n'
        '.section .gnu.lto_main.1,\\"e\\",@progbits\\n.quad 1\\n.text");' + _MAIN,
        ends=_WRONG,
    ),
    "its output over another": reads(
        'asm(".file \\"/etc/x\\"\\n.pushsection .x\\n.incbin \\"/proc/self/mem\\"");'
    ),
}

ON_RESOURCES = {
    "templates without an end": takes(
        "template<int N> struct A { static const int v = A<N + 1>::v; };\nint main() { return A<0>::v; }"
    ),
    "templates by powers": takes(
        "template<int N, int M> struct A { static const int v = A<N - 1, 2 * M>::v + A<N - 1, 2 * M + 1>::v; };\n"
        "template<int M> struct A<0, M> { static const int v = 1; };\nint main() { return A<30, 1>::v; }"
    ),
    "types by powers": takes(
        "template<class T, int N> struct A : A<pair<T, T>, N - 1> {};\ntemplate<class T> struct A<T, 0> { T t; };\n"
        "int main() { A<int, 40> a; return sizeof a; }".replace("pair", "std::pair")
    ),
    "a constant without an end": takes(
        "constexpr long f() { long n = 0; for (long i = 0; i < 1L << 50; i++) n += i; return n; }\n"
        "constexpr long v = f();\nint main() { return v; }"
    ),
    "macros by powers": takes(
        "#define A0 1,\n"
        + "".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 16))
        + "int a[] = { A15 };\nint main() {}"
    ),
    "includes of itself": takes('#include "all.hpp"\n#include __FILE__\nint main() {}'),
    "a giant object": takes("long a[1L << 27] = {1};\nint main() { return a[9]; }"),
    "a giant section": takes('asm(".data\\n.fill 0x7fffffff, 1, 7\\n.text");\nint main() {}'),
    "giant repetition": takes('asm(".rept 100000000\\nnop\\n.endr");\nint main() {}'),
    "a giant nothing": takes("char a[1L << 40];\nint main() { return a[9]; }"),
    "errors without an end": takes("int main() { " + "x;" * 200_000 + " }"),
    "brackets": takes("int main() { return " + "(" * 100_000 + "1" + ")" * 100_000 + "; }"),
    "optimiser": takes(
        "int main() { int x = 0;\n"
        + "".join(f"if (x == {n}) x += {n};\n" for n in range(60_000))
        + "return x; }"
    ),
}

ON_CALLS = {
    "ends before main": forges(
        '__attribute__((constructor)) static void c() { if (write(3, "=i1\\n", 4)) _exit(0); }\n'
        "#include <unistd.h>\nlong f() { return 1; }",
    ),
    "ends well in a constructor": forges(
        '#include <unistd.h>\nstruct C { C() { if (write(3, "=i1\\n", 4)) _exit(0); } } c;\nlong f() { return 1; }',
        costly=False,
    ),
    "its own main": forges(
        "#define main other\nlong f() { return 1; }\n#undef main\nint main() {}"
    ),
    "macros for the harness": forges(
        "#define millrace mine\n#define serve(x) 0\nnamespace mine { int dummy; }\nlong f() { return 1; }"
    ),
    "its own serve": forges(
        '#include <unistd.h>\nnamespace millrace { template<class R> int serve(R (*)()) { return write(3, "=i1\\n", 4) < 0; } }\n'
        "long f() { return 1; }"
    ),
    "equal to everything": forges(
        "struct E { bool operator==(const E&) const { return true; } operator long() const { return 1; } };\nE f() { return {}; }"
    ),
    "two reports": forges('#include <unistd.h>\nlong f() { return write(3, "=i1\\n=i2\\n", 8); }'),
}

SOURCE_ATTACKS = {
    f"{family}: {name}": attack
    for family, attacks in (("file", ON_FILES), ("resource", ON_RESOURCES), ("call", ON_CALLS))
    for name, attack in attacks.items()
}
