"""Shared by all graders of one service: sandbox, caches, helper processes, test sets."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from cachetools import LRUCache

from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.config import RewardServiceConfig
from services.reward_service.grading.helper_process import HelperProcess
from services.reward_service.grading.judges import Judges
from services.reward_service.grading.test_sets import TestSets
from services.reward_service.sandbox.core_queue import QueueFull
from services.reward_service.sandbox.language_check import LanguageCheck
from services.reward_service.sandbox.sandbox import Sandbox

_PREPARE_MATHS = "services.reward_service.graders.symbolic:prepare"
_HELPER_CPU_S = 0.01
"""A guess at the processor time of one call of a helper."""
_WEIGHT = 0.2
"""Of the newest answer in the running mean of processor time."""

_ESTIMATE_BYTES = 16 << 20
_SCORE_BYTES, _TEST_BYTES, _SEEN_BYTES, _NUMBER_BYTES = 1100, 270, 400, 32
"""Memory in a cache, measured with CPython 3.11 and rounded up: of a grade without its texts and
tests, of a test without its texts, of what is learned of a set of tests, and of a number in it."""

REMEMBERED = frozenset(
    {
        Verdict.ACCEPTED,
        Verdict.WRONG_ANSWER,
        Verdict.COMPILE_ERROR,
        Verdict.RUNTIME_ERROR,
        Verdict.NO_CODE,
    }
)
"""Verdicts that a second run would repeat. Those at a limit may depend on the machine."""


class Tools:
    """Shared by all graders of one service; nothing is started before it is needed.

    Attributes:
        config: of the service; names the users' own graders.
        sandbox: workers for untrusted code.
        cache: scores of code.
        estimates: what was learned of tests.
        test_sets: tests that jobs name by their hash.
        judges: models that score answers.
        languages: tries each language before its first answer.
        failures_in_a_row: answers that no sandbox could be had for since the last good one.
    """

    def __init__(self, config: RewardServiceConfig) -> None:
        self.config = config
        self.sandbox = Sandbox(config)
        self.cache = VerdictCache(config.cache_mb << 20)
        self.estimates = Estimates(_ESTIMATE_BYTES)
        self.test_sets = TestSets(max_bytes=config.test_set_mb << 20, folder=config.test_set_folder)
        self.judges = Judges(config)
        self.languages = LanguageCheck()
        self.failures_in_a_row = 0
        own = [place.partition(":")[0] for place in config.graders.values()]
        users = ["services.reward_service.graders.user_graders", *config.grader_modules, *own]
        self._helper = HelperProcess([_PREPARE_MATHS])
        self._users = HelperProcess(users)
        self._http: aiohttp.ClientSession | None = None

    async def call_helper(
        self, function: str, arguments: Any, *, timeout_s: float, of_user: bool = False
    ) -> Any:
        """Call one of our functions, or a user's, in its helper process, on a core of its own.

        Raises:
            HelperTimeout: it was killed at its deadline.
            CallFailed: it raised or died on these arguments.
            HelperFailed: the helper could not start, or is gone.
            QueueFull: no place of users' graders, or no core, became free in time.
        """
        helper = self._users if of_user else self._helper
        queues = [self.sandbox.user_graders] if of_user else []
        wait_s = self.config.queue_wait_s
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(wait_s):  # together
                    for queue in (*queues, self.sandbox.cores):
                        await held.enter_async_context(queue.core(function, _HELPER_CPU_S))
            except TimeoutError:
                raise QueueFull(f"no core in {wait_s:g} s") from None
            return await helper.call(function, arguments, timeout_s=timeout_s)

    async def http(self) -> aiohttp.ClientSession:
        """The session towards users' endpoints, of the running event loop."""
        if self._http is None:
            # Each call has a deadline of its own, and its caller bounds how many there are.
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._http

    async def aclose(self) -> None:
        """End everything, the session included."""
        self.close()
        if self._http is not None:
            await self._http.close()
            self._http = None

    def close(self) -> None:
        """End every process."""
        self.sandbox.close()
        self._helper.close()
        self._users.close()


class VerdictCache:
    """Least recently used grades by key, and one computation at a time for each key.

    Args:
        max_bytes: memory that the grades take.
    """

    def __init__(self, max_bytes: int) -> None:
        self._grades: LRUCache[str, Score] = LRUCache(max_bytes, getsizeof=_bytes_of)
        self._in_flight: dict[str, asyncio.Future[Score | None]] = {}

    def __len__(self) -> int:
        return len(self._grades)

    async def grade(self, key: str, compute: Callable[[], Awaitable[Score]]) -> tuple[Score, bool]:
        """The score, and whether another call computed it.

        A call that waits for another's computation takes its place if that one is cancelled or
        raises. An exception of `compute` reaches its own caller only.
        """
        while True:
            if key in self._grades:
                return self._grades[key], True
            flight = self._in_flight.get(key)
            if flight is None:
                return await self._compute(key, compute), False
            # The shield keeps a cancelled waiter from cancelling it for the others.
            shared = await asyncio.shield(flight)
            if shared is not None:
                return shared, True

    async def _compute(self, key: str, compute: Callable[[], Awaitable[Score]]) -> Score:
        flight: asyncio.Future[Score | None] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = flight
        grade: Score | None = None
        try:
            grade = await compute()
        finally:
            del self._in_flight[key]
            flight.set_result(grade)
        if grade.verdict in REMEMBERED:
            with contextlib.suppress(ValueError):  # it is larger than the whole cache
                self._grades[key] = grade
        return grade


def _bytes_of(grade: Score) -> int:
    """Memory that a grade takes in the cache, its key and place included."""
    texts = [grade.detail, *(text for test in grade.tests for text in (test.output, test.detail))]
    if grade.compile is not None:
        texts.append(grade.compile.message)
    return _SCORE_BYTES + _TEST_BYTES * len(grade.tests) + sum(map(sys.getsizeof, texts))


@dataclass
class _Seen:
    cpu_s: float
    failures: dict[int, int] = field(default_factory=dict)

    def bytes(self) -> int:
        """Memory that it takes in the cache, its key and place included, about."""
        return _SEEN_BYTES + sys.getsizeof(self.failures) + _NUMBER_BYTES * len(self.failures)


class Estimates:
    """Least recently used facts about sets of tests, by any key for a set.

    Args:
        max_bytes: memory that the facts take, about; a set that takes more is not remembered.
    """

    def __init__(self, max_bytes: int) -> None:
        self._seen: LRUCache[str, _Seen] = LRUCache(max_bytes, getsizeof=_Seen.bytes)
        self._typical: dict[str, float] = {}

    def cpu_s(self, key: str, language: str, *, default: float) -> float:
        """Processor seconds that the next answer may take.

        Before the first one to these tests it is what answers in the language took of late, and
        before the first of all `default`.
        """
        seen = self._seen.get(key)
        return self._typical.get(language, default) if seen is None else seen.cpu_s

    def order(self, key: str, tests: int) -> list[int]:
        """The tests, those first on which most answers failed."""
        seen = self._seen.get(key)
        failures = {} if seen is None else seen.failures
        return sorted(range(tests), key=lambda number: -failures.get(number, 0))

    def learn(self, key: str, language: str, *, cpu_s: float, failed: int | None) -> None:
        """Remember an answer's time and the test it failed first."""
        typical = self._typical.get(language, cpu_s)
        self._typical[language] = typical + _WEIGHT * (cpu_s - typical)
        seen = self._seen.get(key) or _Seen(cpu_s)
        seen.cpu_s += _WEIGHT * (cpu_s - seen.cpu_s)
        if failed is not None:
            seen.failures[failed] = seen.failures.get(failed, 0) + 1
        with contextlib.suppress(ValueError):  # it is larger than the whole cache
            self._seen[key] = seen  # again, since its size may have changed
