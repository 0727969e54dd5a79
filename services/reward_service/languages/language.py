"""A language that answers are written in, and its toolchain."""

from collections.abc import Callable
from dataclasses import dataclass

from services.reward_service.languages.tool import Tool, on_path, program_on_path


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """How a source becomes a program.

    The compiler runs in a jail: it reads the source from its standard input, sees /usr, its own
    installation and a folder that is empty but for `source_file`, and has no network.

    Attributes:
        compiler: an executable.
        flags: its arguments; it writes `program` in its working folder.
        package: what to install where it is missing.
        find: the compiler by its name, None if it is not installed.
        version: arguments with which it prints its version.
        source_file: a file that has the source as well.
        environment: variables by name; `{home}` is the folder of the installation, here and in
            `flags`.
        calls: sets of system calls that it needs beyond those of every compiler: values in the
            last column of `isolation/system_calls.csv`. With `in a tree` it may make folders.
        header: source to be compiled once, before the first answer.
        header_file: the file that it is then in, as well as on the standard input.
        header_flags: arguments for that; the compiler writes the file `header_output`.
        header_output: kept in a folder with the file `header_file`.
        packed: a folder that the compiler fills instead, such as a cache; `header_output` is an
            archive of it, and the folder is where it was.
        use_header: arguments before `flags` that make it use the compiled header, where
            `{folder}` is the folder with `header_output` in it, in `environment`, too. There
            it is the working folder while the header itself is compiled.
    """

    compiler: str
    flags: tuple[str, ...]
    package: str = ""
    find: Callable[[str], Tool | None] = on_path
    version: tuple[str, ...] = ("--version",)
    source_file: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    calls: tuple[str, ...] = ()
    header: str = ""
    header_file: str = ""
    header_flags: tuple[str, ...] = ()
    header_output: str = ""
    packed: str = ""
    use_header: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a program runs that needs an interpreter, or more than its own limits.

    Without a runtime a program is an executable that needs nothing but itself, and its whole
    address space is bounded by the test's limit of memory. A virtual machine reserves far more
    than it uses, so here the limit holds the memory that the process can write to.

    Attributes:
        interpreter: an executable that reads the program from the descriptor `{program}`;
            empty: the program is an executable.
        package: what to install where it is missing.
        find: the interpreter by its name, None if it is not installed.
        arguments: of the interpreter or program: `{program}` is a number, `{folder}` the folder
            of the toolchain's header, `{memory_mb}` the test's limit.
        environment: variables by name; there are no others. `{home}` is the folder of the
            installation.
        reserved_mb: address space that it takes beyond the limit.
        own_mb: memory that it writes to for itself, beyond the limit.
        stack_mb: limit of its first stack, and what glibc gives to threads that ask for none.
        calls: sets of system calls that it needs: values in the last column of
            `isolation/system_calls.csv`.
    """

    interpreter: str = ""
    package: str = ""
    find: Callable[[str], Tool | None] = program_on_path
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    reserved_mb: int
    own_mb: int
    stack_mb: int = 8
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language that answers can be written in.

    Attributes:
        name: what graders call it.
        tags: what fenced blocks call it.
        toolchain: how it is compiled; None for one whose interpreter reads the source.
        runtime: how its programs run; None for executables, and for Python, which the fork server
            itself runs.
        sample: a program that prints `ok`, which a service tries before it grades the first answer:
            a linker or a library may be missing, and an interpreter of another version may refuse
            its arguments. Every language but Python needs one.
        with_calls: source and entry point to a source that reads calls from its standard
            input, a line each in the form of `jailed.codec`, and reports results as
            `jailed.answer` does. None if only whole programs can be graded.
        static_types: results have the declared types, so only values are compared.
        suffixes: of files, for the command line.
        out_of_memory: what a program has among its last words on standard error if it failed for
            want of memory.
    """

    name: str
    tags: tuple[str, ...]
    toolchain: Toolchain | None = None
    runtime: Runtime | None = None
    sample: str = ""
    with_calls: Callable[[str, str], str] | None = None
    static_types: bool = False
    suffixes: tuple[str, ...] = ()
    out_of_memory: tuple[str, ...] = ()

    def missing(self) -> str:
        """What has to be installed before answers can be graded, with the fix; empty: nothing."""
        for part, name in ((self.toolchain, "compiler"), (self.runtime, "interpreter")):
            tool = "" if part is None else getattr(part, name)
            if part is not None and tool and part.find(tool) is None:
                fix = f"`apt-get install {part.package or tool}`"
                return f"{self.name} needs {tool}, which is not here: {fix}."
        return ""
