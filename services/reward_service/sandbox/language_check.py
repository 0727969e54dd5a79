"""Finds out which languages work here, before answers in them are graded."""

import asyncio

from services.protocol.reward.code_tests import Limits
from services.reward_service.languages import Language, languages
from services.reward_service.sandbox.compiler import Compiler
from services.reward_service.sandbox.execution import (
    Program,
    SandboxCrashed,
    SlotFailed,
    ToolMissing,
)
from services.reward_service.sandbox.sandbox import SandboxWorker

_LIMITS = Limits()
_OK, _TAIL_BYTES = b"ok", 300


class LanguageCheck:
    """Looks for the tools of languages, and runs their samples as answers are run: a compiler or
    an interpreter that does not work here would make every answer wrong.

    Attributes:
        missing: by language what was not here when the service started, and how to install it.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self._passed: set[str] = set()
        self._lock = asyncio.Lock()

    async def look(self, compiler: Compiler) -> None:
        """Find out what is missing."""
        found = [await asyncio.to_thread(compiler.lacks, one) for one in languages().values()]
        self.missing = {name: lack for name, lack in zip(languages(), found, strict=True) if lack}

    async def check(self, language: Language, compiler: Compiler, worker: SandboxWorker) -> None:
        """Run the sample unless it has passed before.

        Raises:
            ToolMissing: it does not compile, or does not print `ok`.
            SlotFailed: it could not be run.
        """
        if not language.sample or language.name in self._passed:
            return
        async with self._lock:
            if language.name in self._passed:
                return
            try:
                problem = await _problem(language, compiler, worker)
            except SandboxCrashed as crash:  # no answer had a part in it
                raise SlotFailed(f"the sample of {language.name}: {crash}") from crash
            if problem:
                raise ToolMissing(f"{language.name} does not work here: {problem}")
            self._passed.add(language.name)


async def _problem(language: Language, compiler: Compiler, worker: SandboxWorker) -> str:
    """What is wrong with the sample; empty: nothing."""
    compiled = await compiler.compile(language.sample, language)
    if compiled.binary is None:
        said = "" if compiled.record is None else compiled.record.message
        return f"its sample does not compile: {said[:_TAIL_BYTES]}"
    program = Program(binary=compiled.binary, launch=compiled.launch)
    (outcome,) = await worker.run(program.run("", _LIMITS))
    if outcome.stdout.strip() == _OK:
        return ""
    said = (outcome.stderr + outcome.stdout)[-_TAIL_BYTES:].decode(errors="replace")
    return f"its sample ended with {outcome.exit_code}: {said}"
