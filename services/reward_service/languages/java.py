"""Java of the installed JDK: classes in an archive, run by a virtual machine of fixed size."""

from dataclasses import replace
from glob import glob
from pathlib import Path

from services.reward_service.languages.language import Language, Runtime, Toolchain
from services.reward_service.languages.tool import Tool, program_on_path

_BOOT = Path(__file__).with_name("Boot.java").read_text(encoding="utf-8")
_SMALL = (
    *("-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+DisableAttachMechanism", "-Xshare:auto"),
    *("-XX:-UseContainerSupport", "-XX:ActiveProcessorCount=1"),
    *("-XX:MaxRAM=2g", "-XX:CompressedClassSpaceSize=64m", "-XX:ReservedCodeCacheSize=64m"),
    *("-XX:-CreateCoredumpOnCrash", "-XX:ErrorFile=/dev/null", "-Dfile.encoding=UTF-8"),
    "-XX:+DisplayVMOutputToStderr",
)
"""The same size whatever the machine has, no file in /tmp, and no word of the machine's own among a
program's output: one says that memory ran out, and what a program wrote is compared."""


def _java(name: str) -> Tool | None:
    """That of a JDK; Debian's has links to the folder of its settings."""
    found = program_on_path(name)
    if found is None or not Path(found.path).with_name("javac").exists():
        return None
    return replace(found, links=tuple(sorted(glob("/etc/java-*"))))


LANGUAGES = (
    Language(
        name="java",
        tags=("java",),
        toolchain=Toolchain(
            compiler="java",
            package="default-jdk-headless",
            find=_java,
            flags=("Boot", "compile", "program"),
            environment=(("LD_LIBRARY_PATH", "{home}/lib"), ("LC_ALL", "C.UTF-8")),
            calls=("with a pair of sockets",),
            header=_BOOT,
            header_file="Boot.java",
            header_flags=(*_SMALL, "-Xmx512m", "Boot.java", "compile", "boot.jar"),
            header_output="boot.jar",
            use_header=(*_SMALL, "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", "{folder}/boot.jar"),
        ),
        sample='class A { public static void main(String[] a) { System.out.println("ok"); } }',
        runtime=Runtime(
            interpreter="java",
            package="default-jdk-headless",
            find=_java,
            arguments=(
                *_SMALL,
                *("-Xmx{memory_mb}m", "-Xss1m", "-XX:MaxMetaspaceSize=64m"),
                *("--add-opens=java.base/java.io=ALL-UNNAMED", "-cp", "{folder}/boot.jar"),
                *("Boot", "run", "{program}"),
            ),
            environment=(
                *(("LD_LIBRARY_PATH", "{home}/lib"), ("LC_ALL", "C.UTF-8")),
                ("MALLOC_ARENA_MAX", "1"),
            ),
            calls=("with links",),
            reserved_mb=640,
            own_mb=224,
        ),
        suffixes=(".java",),
        out_of_memory=(
            *("java.lang.OutOfMemoryError", "os::commit_memory"),
            "insufficient memory for the Java Runtime",
        ),
    ),
)
