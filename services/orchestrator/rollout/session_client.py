"""The router's recorded sessions, as any client sees them."""

from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from services.http.api_key import key_header
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.failures import one_line
from services.orchestrator.rollout.rollout import UNAVAILABLE, RolloutFailed, RouterUnavailable
from services.protocol.session import (
    SessionFields,
    SessionList,
    SessionOffer,
    SessionSummary,
    SessionTrajectory,
)
from services.protocol.trajectory import Trajectory
from services.retry import retrying

_ANSWER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class FinishedEpisode:
    """What a session recorded.

    Attributes:
        trajectories: those in which the policy sampled anything.
        turns: of each of them, see `SessionTrajectory`.
        calls: recorded.
        unrecorded_calls: had no answer that could be recorded.
    """

    trajectories: list[Trajectory]
    turns: list[list[tuple[int, int]]]
    calls: int
    unrecorded_calls: int


class SessionClient:
    """Creates, closes and deletes sessions; every call has a deadline.

    What an episode cannot do without is asked again while the router is away or full.
    """

    def __init__(self, http: aiohttp.ClientSession, config: OrchestratorConfig) -> None:
        self._http, self._config = http, config
        self._url = f"{config.router_url}/v1/sessions"
        self._headers = key_header(config.router_key)

    async def create(
        self, metadata: dict[str, str], offer: SessionOffer | None = None, *, timeout_s: float
    ) -> str:
        """A new session's id; with an offer agents outside can take it.

        A session whose id got lost on its way is found again by the offer's key; without one
        the router expires it.

        Args:
            metadata: what it is for.
            offer: what agents are told.
            timeout_s: how long a router that is away is asked again.

        Raises:
            RolloutFailed: the router does not make one.
        """
        body: dict[str, Any] = {"metadata": metadata}
        if offer is not None:
            body["offer"] = offer.model_dump(mode="json")
        answer = await self._asked("POST", "", body, timeout_s)
        return str(answer["id"])

    async def finish(self, session: str, *, timeout_s: float) -> "FinishedEpisode":
        """Close a session; a router that is away is asked again for `timeout_s`.

        Raises:
            RolloutFailed: the router does not have it any more, or stays away.
        """
        await self._asked("POST", f"/{session}/finish", {}, timeout_s)
        answer = await self._asked("GET", f"/{session}", None, timeout_s)
        try:
            all_of_them = (SessionTrajectory.model_validate(one) for one in answer["trajectories"])
            # What the policy sampled has its mask in one of them, and only there.
            sampled = [one for one in all_of_them if any(one.loss_mask)]
            return FinishedEpisode(
                trajectories=[one.to_trajectory() for one in sampled],
                turns=[one.turns for one in sampled],
                calls=sum(answer["calls"].values()),
                unrecorded_calls=int(answer["unrecorded_calls"]),
            )
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise RolloutFailed("bad_session", one_line(repr(error))) from error

    async def activity(self, session: str) -> SessionSummary:
        """What happened in a session so far, without its tokens.

        Raises:
            RolloutFailed: the router does not say.
        """
        answer = await self._call("GET", f"/{session}?count=0", None)
        try:
            return SessionFields.model_validate(answer)
        except ValidationError as error:
            raise RolloutFailed("bad_session", one_line(repr(error))) from error

    async def finished(self, after: int, *, wait_s: float) -> list[SessionSummary]:
        """Sessions that finished after a cursor; waits for one if there is none.

        Raises:
            RolloutFailed: the router does not say.
        """
        query = f"?state=finished&after={after}&limit=1000&wait_s={wait_s:g}"
        answer = await self._call("GET", query, None, extra_s=wait_s)
        try:
            return SessionList.model_validate(answer).data
        except ValidationError as error:
            raise RolloutFailed("bad_session", one_line(repr(error))) from error

    async def delete(self, session: str) -> None:
        """Delete a session; the router expires it by itself if this call fails."""
        try:
            await self._call("DELETE", f"/{session}", None)
        except RolloutFailed:
            return

    async def _asked(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> Any:
        """The answer to a call that changes nothing when it is made again."""
        return await retrying(
            lambda: self._call(method, path, body),
            on=RouterUnavailable,
            pauses=self._config.pauses,
            timeout_s=timeout_s,
        )

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, *, extra_s: float = 0.0
    ) -> Any:
        try:
            async with self._http.request(
                method,
                self._url + path,
                json=body,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S + extra_s),
            ) as response:
                if response.status != 200:
                    problem = one_line(await response.text(errors="replace"))
                    away = response.status in UNAVAILABLE
                    failure = RouterUnavailable if away else RolloutFailed
                    raise failure(f"session_http_{response.status}", problem)
                return await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RouterUnavailable("connection", one_line(repr(error))) from error
        except ValueError as error:
            raise RolloutFailed("connection", one_line(repr(error))) from error
