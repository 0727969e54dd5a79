"""What graders work with."""

from dataclasses import dataclass, field
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


@dataclass
class Tools:
    """Shared by all graders of one service.

    Attributes:
        sandbox: workers for untrusted code.
        cache: grades of code.
        estimates: what was learned of tests.
        helper: process for maths and patterns.
        users: process for users' own functions.
        test_sets: tests that jobs name by their hash.
        functions: where registered Python graders are, `module:function` by name.
        endpoints: where registered HTTP graders are, URL by name.
        failures_in_a_row: answers that no sandbox could be had for since the last good one.
    """

    sandbox: Sandbox
    cache: VerdictCache
    estimates: Estimates
    helper: HelperProcess
    users: HelperProcess
    test_sets: TestSets
    functions: dict[str, str]
    endpoints: dict[str, str]
    failures_in_a_row: int = 0
    _http: aiohttp.ClientSession | None = field(default=None, init=False)

    @classmethod
    def of(cls, config: RewardServiceConfig) -> "Tools":
        """The tools of a service; nothing is started."""
        own = [place.partition(":")[0] for place in config.graders.values()]
        users = ["services.reward_service.graders.user_graders", *config.grader_modules, *own]
        return cls(
            sandbox=Sandbox(config),
            cache=VerdictCache(config.cache_entries),
            estimates=Estimates(config.cache_entries),
            helper=HelperProcess(["math_verify"], concurrency=config.slots),
            test_sets=TestSets(max_bytes=config.test_set_mb << 20, folder=config.test_set_folder),
            users=HelperProcess(users, concurrency=config.user_grader_processes),
            functions=config.graders,
            endpoints=config.http_graders,
        )

    async def ask(
        self, function: str, arguments: Any, *, timeout_s: float, of_user: bool = False
    ) -> Any:
        """Call a function of ours, or one of a user's, in its helper, on a core of its own.

        Raises:
            HelperTimeout: it was killed at its deadline.
            HelperFailed: it raised or died.
            QueueFull: no core became free in time.
        """
        helper = self.users if of_user else self.helper
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
        self.helper.close()
        self.users.close()
