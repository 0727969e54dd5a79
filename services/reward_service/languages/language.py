"""A language that answers are written in, and its toolchain."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """How a source becomes a program that needs nothing but itself to run.

    The compiler runs in a jail: it reads the source from its standard input, sees /usr and an
    empty folder, and has no network.

    Attributes:
        compiler: an executable that prints its version for `--version`.
        flags: its arguments; it writes `program` in its working folder.
        header: source to be precompiled once, if the compiler can do that.
        header_flags: its arguments then; it writes the file `header_output` and finds the
            source in a file of the same name without its last suffix.
        use_header: arguments that make it use the precompiled header, where `{folder}` is
            the folder with `header_output` in it.
    """

    compiler: str
    flags: tuple[str, ...]
    header: str = ""
    header_flags: tuple[str, ...] = ()
    header_output: str = ""
    use_header: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language that answers can be written in.

    Attributes:
        name: what graders call it.
        tags: what fenced blocks call it.
        toolchain: how it is compiled; None for Python, which the fork server itself runs.
        with_calls: source and entry point to a source that reads calls from its standard
            input, a line each in the form of `jailed.codec`, and reports results as
            `jailed.answer` does. None if only whole programs can be graded.
        static_types: results have the declared types, so only values are compared.
        suffixes: of files, for the command line.
    """

    name: str
    tags: tuple[str, ...]
    toolchain: Toolchain | None = None
    with_calls: Callable[[str, str], str] | None = None
    static_types: bool = False
    suffixes: tuple[str, ...] = ()
