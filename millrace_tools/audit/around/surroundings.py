"""What is around environments and graders while a check plays in them: mostly something broken."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

from millrace_tools.audit.inside import broken_network, failing_grader
from millrace_tools.audit.subject import Subject
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CUT_OFF = "millrace_tools.audit.inside.cut_off_graders"  # which works where it is imported
_HERE, _NOBODY = "127.0.0.1,localhost", "http://127.0.0.1:9"


class Felt:
    """Counts what failed because of the audit."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.refused = 0
        file.touch()

    @property
    def count(self) -> int:
        """Connections that were refused or cut."""
        return self.refused + self._file.stat().st_size

    def refuse(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hang up."""
        self.refused += 1
        writer.close()


@contextlib.asynccontextmanager
async def without_network(
    subject: Subject, policy_url: str, *, graded: bool
) -> AsyncIterator[Felt]:
    """Environments whose network breaks at SIGUSR1; graders and agents that have none.

    Agents are programs in any language: they get a proxy that hangs up on them, for all addresses
    but those of this machine.

    Args:
        subject: what is audited.
        policy_url: where alone environments get an answer.
        graded: whether any grader is the user's own.
    """
    config = subject.scoring.config
    modules = [*config.grader_modules, _CUT_OFF]
    async with _refusing() as (felt, url, file):
        cut_off = config.model_copy(
            update={
                "grader_modules": modules,
                "http_graders": dict.fromkeys(config.http_graders, url),
            }
        )
        proxies = dict.fromkeys((*_PROXIES, *(one.lower() for one in _PROXIES)), url)
        variables = {
            broken_network.POLICY: policy_url.partition("://")[2],
            broken_network.FELT: str(file),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), _HERE),
            **(proxies if subject.has_agent else {}),
        }
        with _environ(variables):
            async with _graded_by(subject, cut_off) if graded else contextlib.nullcontext():
                await subject.restart(inside=broken_network.__file__)
                try:
                    yield felt
                finally:
                    await subject.restart()


@contextlib.asynccontextmanager
async def apart(subject: Subject) -> AsyncIterator[None]:
    """Processes of environments and graders end with it: answers may overwrite their code."""
    async with _graded_by(subject, subject.scoring.config):
        try:
            yield
        finally:
            await subject.restart()


@contextlib.asynccontextmanager
async def with_failing_graders(subject: Subject, names: set[str]) -> AsyncIterator[None]:
    """The user's graders fail on every answer: functions raise, endpoints are away."""
    async with _replaced(subject, names, failing_grader.fails.__name__, _NOBODY):
        yield


@contextlib.asynccontextmanager
async def with_hanging_graders(subject: Subject, names: set[str]) -> AsyncIterator[None]:
    """The user's graders never answer: functions sleep, endpoints keep connections open."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with _replaced(subject, names, failing_grader.hangs.__name__, url):
            yield


@contextlib.asynccontextmanager
async def _replaced(
    subject: Subject, names: set[str], function: str, url: str
) -> AsyncIterator[None]:
    config = subject.scoring.config
    own = {"graders": dict.fromkeys(names, f"{failing_grader.__name__}:{function}")}
    own |= {"http_graders": dict.fromkeys(config.http_graders, url)}
    async with _graded_by(subject, config.model_copy(update=own)):
        yield


@contextlib.asynccontextmanager
async def _refusing() -> AsyncIterator[tuple[Felt, str, Path]]:
    """A server that hangs up, its address, and the file in which other processes count."""
    with tempfile.TemporaryDirectory(prefix="millrace-audit-") as folder:
        file = Path(folder) / "felt"
        felt = Felt(file)
        server = await asyncio.start_server(felt.refuse, "127.0.0.1", 0)
        async with server:
            yield felt, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file


@contextlib.asynccontextmanager
async def _graded_by(subject: Subject, config: RewardServiceConfig) -> AsyncIterator[None]:
    scoring = Scoring(config)
    await scoring.start()
    before = subject.scoring
    subject.scoring = scoring
    try:
        yield
    finally:
        subject.scoring = before
        await scoring.tools.aclose()


@contextlib.contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    """For the processes that start meanwhile."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
