"""Rust 2021, as programs that need no library to run."""

import shutil
import subprocess
from functools import cache

from services.reward_service.languages.language import Language, Toolchain
from services.reward_service.languages.tool import Tool, tool_at

_ANSWER_S = 60.0


@cache
def _rustc(name: str) -> Tool | None:
    """The compiler itself: what rustup puts on the PATH starts one of several."""
    found = shutil.which(name)
    if found is None:
        return None
    command = [found, "--print", "sysroot"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tool_at(f"{done.stdout.strip()}/bin/{name}") if done.returncode == 0 else None


LANGUAGES = (
    Language(
        name="rust",
        tags=("rust", "rs"),
        toolchain=Toolchain(
            compiler="rustc",
            find=_rustc,
            flags=(
                *("-", "-o", "program", "--sysroot={home}", "--edition=2021", "-Clinker=gcc"),
                *("--crate-name=answer", "-Awarnings", "-Copt-level=3", "-Cdebuginfo=0"),
                *("-Cstrip=symbols", "-Ccodegen-units=1", "-Crelocation-model=static"),
                "-Ctarget-feature=+crt-static",
                # No compiler that the linker starts for a section `.gnu.lto_`, as for C++.
                *("-Clink-arg=-fno-lto", "-Clink-arg=-fno-use-linker-plugin"),
            ),
            environment=(("LD_LIBRARY_PATH", "{home}/lib"),),
            calls=("in a tree", "with a pair of sockets"),
        ),
        sample='fn main() { println!("ok"); }',
        suffixes=(".rs",),
        out_of_memory=("memory allocation of ",),
    ),
)
