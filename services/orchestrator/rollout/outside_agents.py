"""Episodes that agents outside play: they take sessions, and finish them."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import aiohttp

from services.observability.log import Log
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.rollout import RolloutFailed
from services.orchestrator.rollout.session_client import SessionClient
from services.protocol.reward.grader import AnyGrader
from services.protocol.router import SESSION_HEADER
from services.protocol.session import SessionOffer, SessionSummary
from services.side_by_side import cancel

_LOOK_S = 20.0
_PAUSE_S = 1.0
_BEFORE_S = 60.0
"""Sessions that finished so long before the start are looked at: clocks of hosts differ."""

OF_AGENTS = {
    "agent_abandoned",
    "agent_failed",
    "agent_timeout",
    "environment_never_called",
    "environment_result",
}
"""Reasons for which an episode fails with no fault of the cluster."""

_log = Log("orchestrator")


class OutsideAgents:
    """Plays episodes by having agents play them; see `EpisodePlayer`.

    Args:
        config: where the router is.
        run_id: by which agents may ask for its sessions.
        graders: of which an agent may name one at the end.
        live: see `EpisodePlayer`.
    """

    def __init__(
        self,
        config: OrchestratorConfig,
        run_id: str,
        graders: Mapping[str, AnyGrader] = MappingProxyType({}),
        *,
        live: bool = False,
    ) -> None:
        self._config, self._run_id, self.live = config, run_id, live
        self._graders = graders
        self._open: dict[str, asyncio.Future[SessionSummary]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._sessions: SessionClient | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for sessions that agents have finished."""
        self._http = aiohttp.ClientSession()
        self._sessions = SessionClient(self._http, self._config)
        watch = self._watch(self._sessions)
        self._watcher = asyncio.create_task(watch, name="finished_sessions")

    async def close(self) -> None:
        """Stop looking."""
        await cancel(self._watcher)
        if self._http is not None:
            await self._http.close()

    def offer(self, episode: dict[str, Any], key: str) -> SessionOffer:
        """What an agent is told, and what its calls must be. Never how it will be graded."""
        task = episode["task"]
        sampling = {**episode["fixed"]}
        told = {name: task[name] for name in ("task_id", "messages", "data") if name in task}
        if self.live:
            told = {}
        return SessionOffer(
            task=told,
            run=self._run_id,
            key=key,
            model=sampling.pop("model"),
            sampling=sampling,
            max_tokens=episode["max_tokens"],
            seed=episode["seed"],
            graders=list(self._graders),
            live=self.live,
        )

    async def run(self, episode: dict[str, Any]) -> dict[str, Any]:
        """See `EpisodePlayer`; ends when an agent finishes the session."""
        assert self._sessions is not None
        session = episode["session"][SESSION_HEADER]
        finished = self._open[session] = asyncio.get_running_loop().create_future()
        try:
            # It may have ended before it was waited for: that is not told again.
            with suppress(RolloutFailed):
                seen = await self._sessions.activity(session)
                if seen.state == "finished" and not finished.done():
                    finished.set_result(seen)
            ended = await finished
        finally:
            del self._open[session]
        if ended.failure is not None:
            raise RolloutFailed("agent_failed", ended.failure)
        outcome: dict[str, Any] = {} if ended.text is None else {"text": ended.text}
        if ended.grader is not None:
            if ended.grader not in self._graders:  # it was offered before the run was resumed
                raise RolloutFailed("environment_result", f"no grader is named {ended.grader!r}")
            outcome["grader"] = self._graders[ended.grader]
        if outcome:
            return outcome
        if ended.reward is None:
            return {}
        rewards = {"turns": ended.turn_rewards, "tokens": ended.token_rewards}
        return {"reward": ended.reward, **rewards}

    @staticmethod
    def given_up(seen: SessionSummary | None) -> str:
        """Why an episode without progress ended, by its session as it was last seen."""
        waits = seen is not None and seen.offer == "waiting"
        return "agent_absent" if waits else "agent_abandoned"

    async def _watch(self, sessions: SessionClient) -> None:
        """Follow the order in which sessions finish, until cancelled."""
        cursor = int(1000 * (time.time() - _BEFORE_S))
        while True:
            try:
                ended = await sessions.finished(cursor, wait_s=_LOOK_S)
            except RolloutFailed as away:
                _log.warning("sessions_unreachable", run=self._run_id, reason=str(away))
                await asyncio.sleep(_PAUSE_S)
                continue
            for session in ended:
                cursor = max(cursor, session.cursor or 0)
                with suppress(KeyError, asyncio.InvalidStateError):
                    self._open[session.id].set_result(session)
