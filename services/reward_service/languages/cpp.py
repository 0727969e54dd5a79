"""C++17 and C++20 by the GNU compiler, as programs that need no library to run."""

from pathlib import Path

from services.reward_service.languages.language import Language, Toolchain

_PARTS = ("cpp_calls.hpp", "cpp_sysinfo.hpp")
_OURS = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in _PARTS]
_HEADER = "".join(("#include <bits/stdc++.h>\n", *_OURS))
_NO_LTO = ("-fno-lto", "-fno-use-linker-plugin")
"""Without them the linker starts a second compiler for a section named `.gnu.lto_`, which an answer
can write in assembler: the first keeps `collect2` from it, both the linker's plugin."""


def with_calls(source: str, entry_point: str) -> str:
    """The answer and a `main` that calls one of its functions.

    A macro of the answer's may rename words of the language (`#define int long long` is
    common), so nothing but names follows the answer.
    """
    owner, _, method = entry_point.rpartition(".")
    function = f"&{owner}::{method}" if owner else f"&{method}"
    return f"{source}\n#undef signed\nsigned main() {{ return millrace::serve({function}); }}\n"


def _language(standard: str, *tags: str, suffixes: tuple[str, ...] = ()) -> Language:
    flags = ("-x", "c++", f"-std=c++{standard}", "-O2", "-w", "-fmax-errors=3")
    return Language(
        name=f"cpp{standard}",
        tags=(f"cpp{standard}", f"c++{standard}", *tags),
        toolchain=Toolchain(
            compiler="g++",
            flags=(*flags, *_NO_LTO, "-static", "-pipe", "-o", "program", "-"),
            header=_HEADER,
            header_file="all.hpp",
            header_flags=("-x", "c++-header", *flags[2:], "-o", "all.hpp.gch", "all.hpp"),
            header_output="all.hpp.gch",
            use_header=("-include", "{folder}/all.hpp"),
        ),
        sample='int main() { std::puts("ok"); }',
        with_calls=with_calls,
        static_types=True,
        suffixes=suffixes,
        out_of_memory=("std::bad_alloc",),
    )


LANGUAGES = (
    _language("17", "cpp", "c++", "cc", "cxx", suffixes=(".cpp", ".cc", ".cxx")),
    _language("20", "cpp", "c++", "cc", "cxx"),
)
