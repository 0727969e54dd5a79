"""What slots prepare for the languages whose programs have a runtime."""

from typing import Any

from services.reward_service.isolation.seccomp_filter import SeccompFilter, build_filter
from services.reward_service.languages import Language, languages
from services.reward_service.languages.language import Runtime
from services.reward_service.languages.tool import Tool

SYSTEM_READABLE = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/dev/urandom"),
)
"""What every answer may read of the system."""
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
"""The kernel starts it before an interpreter that needs libraries."""


def interpreters() -> list[Tool]:
    """The interpreters that are installed here."""
    found = (interpreter(one.runtime) for one in languages().values() if one.runtime is not None)
    return [tool for tool in found if tool is not None]


def interpreter(runtime: Runtime) -> Tool | None:
    """That of a runtime; None if it has none, or it is not installed."""
    return runtime.find(runtime.interpreter) if runtime.interpreter else None


def kind_of_process(
    paths: dict[str, list[str]], seccomp: SeccompFilter, *, interpreter: str | None = None
) -> dict[str, Any]:
    """One kind for `jailed.kinds`: the paths that it may use, its filter, and what is executed."""
    seccomp_facts = (seccomp.program.hex(), seccomp.own_pid_at)
    return {"paths": paths, "filter": seccomp_facts, "interpreter": interpreter}


def slot_runtimes(*, namespaces: bool, shared: str | None) -> dict[str, dict[str, Any]]:
    """What `jailed.kinds` prepares, by the names of the languages that are installed here.

    Args:
        namespaces: whether slots have a file system of their own.
        shared: the folder of the toolchains' headers, as the slots have it.
    """
    return {
        name: _facts(language.runtime, namespaces=namespaces, shared=shared)
        for name, language in languages().items()
        if language.runtime is not None and _is_installed(language)
    }


def _is_installed(language: Language) -> bool:
    runtime = language.runtime
    return runtime is not None and (not runtime.interpreter or interpreter(runtime) is not None)


def _facts(runtime: Runtime, *, namespaces: bool, shared: str | None) -> dict[str, Any]:
    found = interpreter(runtime)
    tool = None if found is None else found.inside(namespaces=namespaces)
    seccomp = build_filter("program", private_memory=True, sets=runtime.calls)
    readable = [*SYSTEM_READABLE, *(() if tool is None else tool.folders)]
    paths = {
        "readable": readable + ([] if shared is None else [shared]),
        "executable": [] if tool is None else [tool.path, *_LOADERS],
        "writable": ["/dev/null"],
    }
    return kind_of_process(paths, seccomp, interpreter=None if tool is None else tool.path)
