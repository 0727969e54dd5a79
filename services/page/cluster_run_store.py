"""The runs and the state of a cluster."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from services.http.api_key import key_header, key_in
from services.observability.log import Log
from services.page.config import PageConfig
from services.page.run_store import MOST_RUNS, RunStore
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import MemberTable, WeightBus

_TIMEOUT_S = 5.0
_log = Log("page")


class ClusterRunStore(RunStore):
    """Asks orchestrator, router and weight bus at intervals, and keeps their newest answers.

    Run directories are read from the file system that this process shares with the
    orchestrator, so that a browser that looks at a run costs the run nothing.

    Raises:
        InvalidInput: the variable that shall hold the API key is not set.
    """

    field = "run_dir"

    def __init__(self, config: PageConfig, url: str, bus: WeightBus) -> None:
        super().__init__()
        self._config, self._url, self._bus = config, url, bus
        self._headers = key_header(key_in(config.router_key_env, field="page.router_key_env"))
        self._statuses: dict[str, dict[str, Any]] = {}
        self._load: dict[str, Any] | None = None
        self._table: MemberTable | None = None
        self._problem = "nothing was heard yet"

    async def follow(self) -> None:
        """Ask until cancelled; without an answer the one before is shown, with the reason."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http:
            while True:
                problem = await self._look(http)
                if problem and problem != self._problem:
                    _log.warning("cluster_not_seen", why=problem)
                self._problem = problem
                await asyncio.sleep(self._config.look_s)

    async def _look(self, http: aiohttp.ClientSession) -> str:
        """Ask each service; returns why some did not answer, empty if all did."""
        problems = []
        for ask in (self._ask_runs, self._ask_load, self._ask_members):
            try:
                await ask(http)
            except Exception as error:  # noqa: BLE001  the outer edge of a look: shown and logged
                problems.append(str(error) or type(error).__name__)
        return "; ".join(dict.fromkeys(problems))

    async def _ask_runs(self, http: aiohttp.ClientSession) -> None:
        for status in (await self._asked(http, "/v1/runs"))[-MOST_RUNS:]:
            self._statuses[status["run_id"]] = status
        for oldest in list(self._statuses)[:-MOST_RUNS]:
            del self._statuses[oldest]

    async def _ask_load(self, http: aiohttp.ClientSession) -> None:
        self._load = await self._asked(http, "/v1/load")

    async def _ask_members(self, _: aiohttp.ClientSession) -> None:
        self._table = await self._bus.watch(0, 0.0)

    async def _asked(self, http: aiohttp.ClientSession, path: str) -> Any:
        async with http.get(self._url + path) as answer:
            if answer.status != 200:
                raise NotReady(f"{path} answers {answer.status}")
            return await answer.json()

    def places(self) -> dict[str, Path]:
        """See `RunStore`: the orchestrator knows them."""
        newest_first = reversed(list(self._statuses.items()))
        return {run_id: Path(status["run_dir"]) for run_id, status in newest_first}

    def status(self, run_id: str) -> dict[str, Any] | None:
        """The newest status from the orchestrator."""
        return self._statuses.get(run_id)

    def live(self) -> dict[str, Any] | None:
        """Replicas with version and lease, and the router's load."""
        table = self._table
        return {
            "problem": self._problem,
            "members": [asdict(member) for member in table.members] if table else [],
            "newest_version": table.newest_version if table else None,
            "load": self._load,
        }
