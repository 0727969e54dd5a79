"""The sandbox, caches and helper processes that graders share."""

from typing import Any

import aiohttp

from services.reward_service.config import RewardServiceConfig
from services.reward_service.grading.estimates import Estimates
from services.reward_service.grading.helper_process import HelperProcess
from services.reward_service.grading.test_sets import TestSets
from services.reward_service.grading.verdict_cache import VerdictCache
from services.reward_service.sandbox.sandbox import Sandbox

_ASK_S = 0.01
"""A guess at the processor time of one question to the helper."""


class Tools:
    """Shared by all graders of one service; nothing is started before it is needed.

    Attributes:
        config: of the service; names the users' own graders.
        sandbox: workers for untrusted code.
        cache: scores of code.
        estimates: what was learned of tests.
        test_sets: tests that jobs name by their hash.
        failures_in_a_row: answers that no sandbox could be had for since the last good one.
    """

    def __init__(self, config: RewardServiceConfig) -> None:
        self.config = config
        self.sandbox = Sandbox(config)
        self.cache = VerdictCache(config.cache_entries)
        self.estimates = Estimates(config.cache_entries)
        self.test_sets = TestSets(max_bytes=config.test_set_mb << 20, folder=config.test_set_folder)
        self.failures_in_a_row = 0
        own = [place.partition(":")[0] for place in config.graders.values()]
        users = ["services.reward_service.graders.user_graders", *config.grader_modules, *own]
        self._helper = HelperProcess(["math_verify"], concurrency=config.slots)
        self._users = HelperProcess(users, concurrency=config.user_grader_processes)
        self._http: aiohttp.ClientSession | None = None

    async def ask(
        self, function: str, arguments: Any, *, timeout_s: float, of_user: bool = False
    ) -> Any:
        """Call one of our functions, or a user's, in its helper process, on a core of its own.

        Raises:
            HelperTimeout: it was killed at its deadline.
            HelperFailed: it raised or died.
            QueueFull: no core became free in time.
        """
        helper = self._users if of_user else self._helper
        async with self.sandbox.cores.core(function, _ASK_S):
            return await helper.call(function, arguments, timeout_s=timeout_s)

    async def http(self) -> aiohttp.ClientSession:
        """The session towards users' endpoints, of the running event loop."""
        if self._http is None:
            self._http = aiohttp.ClientSession()
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
