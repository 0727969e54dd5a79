"""Sample groups of episodes: a user's environment, or an agent outside, talks with the policy in
recorded sessions."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import aiohttp

from services.http.api_key import key_header
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.call_rewards import misfit, returns
from services.orchestrator.rollout.limits import LimitReached, RolloutLimits, limited
from services.orchestrator.rollout.rollout import (
    WHOLE_DISTRIBUTION,
    Arrived,
    RolloutFailed,
    RolloutRequest,
    sampling_seed,
)
from services.orchestrator.rollout.router_calls import interrupt_session
from services.orchestrator.rollout.session_client import SessionClient
from services.protocol.reward.grader import AnyGrader, with_question
from services.protocol.reward.reward_service import Score, Verdict
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.router import SESSION_HEADER
from services.protocol.run.task import Task
from services.protocol.session import SessionOffer, SessionSummary
from services.side_by_side import cancel, running

_LOOKS = 4
"""At the session of an episode, within the time that it may be without progress."""
_log = Log("orchestrator")


class EpisodePlayer(Protocol):
    """Plays single episodes.

    Attributes:
        live: an episode that nobody plays yet is no failure, and whoever plays one may go on when
            the run has given it up.
    """

    @property
    def live(self) -> bool:
        """See the class."""

    async def start(self) -> None:
        """Be ready to play.

        Raises:
            InvalidInput: it cannot.
        """

    async def close(self) -> None:
        """End what is still played."""

    def offer(self, episode: dict[str, Any], key: str) -> SessionOffer | None:
        """What the episode's session is made for, if others play it; `key` is the run's own name
        of the episode."""

    async def run(self, episode: dict[str, Any]) -> dict[str, Any]:
        """Play one episode to its `{"reward": number}`, `{"rewards": {name: number}}`,
        `{"text": text}` for the task's grader, or `{}` if the grader shall have its last answer;
        with `grader`, that one shall have it. Beside a reward, `turns` has those of its parts that
        came before the end, by the number of the newest call then, and `tokens` lists of those
        that went to single tokens of that call; or `of_calls` has those of all calls, each a
        number or such a list.

        It has no deadline; a cancelled call ends the episode.

        Raises:
            RolloutFailed: it has neither.
        """

    def given_up(self, seen: SessionSummary | None) -> str:
        """Why an episode without progress ended, by its session as it was last seen."""


class EpisodeSampler:
    """Rolls out groups whose members are episodes; use it as an async context.

    A failed episode is left out of its group; its reason is named and its tokens are counted.
    A group that is left with fewer than two episodes fails.
    """

    def __init__(
        self,
        config: OrchestratorConfig,
        *,
        player: EpisodePlayer,
        model: str,
        run_id: str,
        by_token: bool = False,
    ) -> None:
        """`by_token`: single tokens keep rewards of their own."""
        self._config, self._by_token = config, by_token
        self._model = model
        self._run_id = run_id
        self._key = config.router_key
        self._player = player
        self._slots = asyncio.Semaphore(config.max_connections)
        self._running: set[asyncio.Task[RolloutFailed | None]] = set()
        self._http: aiohttp.ClientSession | None = None
        self._open: dict[str, set[str]] = {}

    async def __aenter__(self) -> "EpisodeSampler":
        """Start its player."""
        await self._player.start()
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End it, once the sessions of open episodes are closed, or left to their agents."""
        await cancel(*self._running)
        await self._player.close()
        if self._http is not None:
            await self._http.close()

    async def sample(self, request: RolloutRequest, arrived: Arrived) -> None:
        """Run `n` episodes; `arrived` gets the trajectories of each as soon as it is over.

        Raises:
            RolloutFailed: fewer than two episodes, or the only one, have a result.
        """
        total_s = request.limits.total_s
        deadline = None if total_s is None else time.monotonic() + total_s
        async with asyncio.TaskGroup() as group:
            episodes = [
                group.create_task(self._episode(request, index, deadline, arrived))
                for index in range(request.n)
            ]
            self._running.update(episodes)
            for episode in episodes:
                episode.add_done_callback(self._running.discard)
        failures = [failure for one in episodes if (failure := one.result()) is not None]
        if request.n - len(failures) < min(2, request.n):
            reason, _ = Counter(failure.reason for failure in failures).most_common(1)[0]
            last = next(f for f in reversed(failures) if f.reason == reason)
            problem = str(last).removeprefix(f"{reason}: ")
            raise RolloutFailed(reason, f"{len(failures)} of {request.n} episodes; {problem}")

    async def interrupt(self, request: RolloutRequest, min_version: int) -> int:
        """See `Sampler`; the next calls of its episodes wait, too."""
        assert self._http is not None
        url, key = self._config.router_url, key_header(self._key)
        stopped = await asyncio.gather(
            *(
                interrupt_session(self._http, url, name, min_version=min_version, headers=key)
                for name in self._open.get(request.session, ())
            )
        )
        return stopped.count(False)

    async def _episode(
        self, request: RolloutRequest, index: int, deadline: float | None, arrived: Arrived
    ) -> RolloutFailed | None:
        """One episode, whose failure is an answer too."""
        try:
            async with asyncio.timeout(_left(deadline)):
                await self._slots.acquire()
        except TimeoutError:
            return RolloutFailed("environment_timeout", "no place for one more episode")
        try:
            failure = await self._recorded(request, index, deadline, arrived)
        except RolloutFailed as error:
            failure = error
        finally:
            self._slots.release()
        outcome = "played" if failure is None else failure.reason
        RunMetrics.episodes.inc(1, {"run": self._run_id, "outcome": outcome})
        if failure is not None:
            _log.warning(
                "episode_failed",
                run=self._run_id,
                session=request.session,
                trajectory=index,
                reason=failure.reason,
                error=str(failure),
            )
        return failure

    async def _recorded(
        self, request: RolloutRequest, index: int, deadline: float | None, arrived: Arrived
    ) -> RolloutFailed | None:
        assert request.task is not None
        sessions, longest_s = self._sessions, request.limits.longest_quiet_s
        settings = self._settings(request, index)
        metadata = {"rollout": request.session[-512:], "index": str(index)}
        offer = self._player.offer(settings, f"{request.session}/{index}")
        limits = replace(request.limits, total_s=_left(deadline))
        session = await sessions.create(metadata, offer, timeout_s=limits.longest_quiet_s)
        request.progressed()
        failure: RolloutFailed | None = None
        kept = False
        outcome: dict[str, Any] = {}
        self._open.setdefault(request.session, set()).add(session)
        try:
            try:
                limits = replace(request.limits, total_s=_left(deadline))
                episode = settings | self._order(request, session, limits)
                outcome = await self._played(episode, session, replace(request, limits=limits))
            except RolloutFailed as error:
                failure = error
            if failure is not None and self._player.live:
                return failure  # its user may still be talking, and `finish` would end that
            request.progressed()
            played = await sessions.finish(session, timeout_s=longest_s)
        except asyncio.CancelledError:
            # As after a kill: the agent plays on, and the next one finds the session by its key.
            kept = offer is not None and request.goes_on()
            raise
        finally:
            self._close(request.session, session)
            if not kept:
                await sessions.delete(session)
        trajectories = played.trajectories
        if failure is None and not trajectories:
            failure = _nothing(played.unrecorded_calls)
        if failure is None and (problem := misfit(outcome, played)):
            failure = RolloutFailed("environment_result", problem)
        if failure is None and not outcome.keys() - {"grader"}:
            outcome |= {"text": trajectories[-1].text}
        chosen = self._chosen(request.task, outcome)
        if failure is None and "text" in outcome and not (chosen or request.task.grader):
            problem = "it ended with a text, or with nothing, and the task has no grader for it"
            failure = RolloutFailed("environment_result", problem)
        for trajectory, turns in zip(trajectories, played.turns, strict=True):
            if failure is None and "text" in outcome:
                arrived(index, replace(trajectory, text=outcome["text"]), **chosen)
            else:
                score = _score(request, outcome, failure)
                if failure is None:
                    score = replace(score, returns=returns(outcome, turns, by_token=self._by_token))
                arrived(index, trajectory, score)
        return failure

    def _chosen(self, task: Task, outcome: dict[str, Any]) -> dict[str, AnyGrader]:
        """The grader that an outcome names; the task of a live agent is not known."""
        grader = outcome.get("grader")
        told = grader if self._player.live else with_question(grader, task.question)
        return {} if told is None else {"grader": told}

    async def _played(
        self, episode: dict[str, Any], session: str, request: RolloutRequest
    ) -> dict[str, Any]:
        """The outcome of an episode, within its limits."""
        seen: list[SessionSummary] = []
        try:
            async with asyncio.timeout(None) as taken, limited(request.limits) as progressed:
                watch = self._watch(session, request, progressed, taken, seen)
                async with running(watch, name="episode_watch"):
                    return await self._player.run(episode)
        except LimitReached as limit:
            last = seen[-1] if seen else None
            late = limit.reason == "deadline"
            reason = "environment_timeout" if late else self._player.given_up(last)
            raise RolloutFailed(reason, f"no result: {limit}") from None
        except TimeoutError:
            if not taken.expired():
                raise
            problem = f"not ended {request.limits.taken_s:g} s after an agent took it"
            raise RolloutFailed("agent_timeout", problem) from None

    async def _watch(
        self,
        session: str,
        request: RolloutRequest,
        progressed: Callable[[], None],
        taken: asyncio.Timeout,
        looks: list[SessionSummary],
    ) -> None:
        """Look at the episode's session now and then: a call that is open there, which the router
        ends by its own deadlines, or that is new is progress; no progress moves the deadline of
        an episode that was taken."""
        sessions, calls, offer = self._sessions, 0, "none"
        longest_s = request.limits.taken_s
        while True:
            await asyncio.sleep(min(request.limits.progress_s, longest_s or math.inf) / _LOOKS)
            try:
                seen = await sessions.activity(session)
            except RolloutFailed:  # the router is away, and so is any progress
                continue
            looks[:] = [seen]
            if seen.offer == "taken" and taken.when() is None and longest_s is not None:
                taken.reschedule(asyncio.get_running_loop().time() + longest_s)
            made = sum(seen.calls.values()) + seen.unrecorded_calls
            waits = self._player.live and seen.offer == "waiting"
            if seen.open_calls or waits or (made, seen.offer) != (calls, offer):
                calls, offer = made, seen.offer
                progressed()
                request.progressed()

    @property
    def _sessions(self) -> SessionClient:
        assert self._http is not None, "use the sampler as an async context"
        return SessionClient(self._http, self._config)

    def _close(self, rollout: str, session: str) -> None:
        self._open[rollout].discard(session)
        if not self._open[rollout]:
            del self._open[rollout]

    def _settings(self, request: RolloutRequest, index: int) -> dict[str, Any]:
        """What an episode is, and how the policy answers in it."""
        assert request.task is not None
        return {
            "task": request.task.model_dump(mode="json", exclude_unset=True),
            "fixed": {
                "model": self._model,
                "temperature": request.temperature,
                **WHOLE_DISTRIBUTION,
            },
            "max_tokens": request.max_tokens,
            "seed": sampling_seed(request.seed, index),
        }

    def _order(
        self, request: RolloutRequest, session: str, limits: RolloutLimits
    ) -> dict[str, Any]:
        """Where it is played, and for how long."""
        return {
            "url": self._config.router_url,
            "session": {SESSION_HEADER: session, **request.routing},
            "api_key": self._key or "none",
            "timeout_s": limits.total_s,
            "sandbox_timeout_s": limits.longest_quiet_s,
        }


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _nothing(unrecorded_calls: int) -> RolloutFailed:
    if unrecorded_calls:
        problem = f"none of its {unrecorded_calls} calls was answered"
        return RolloutFailed("environment_unrecorded", problem)
    problem = "rollout ended without a call through its client"
    return RolloutFailed("environment_never_called", problem)


def _score(
    request: RolloutRequest, outcome: dict[str, Any], failure: RolloutFailed | None
) -> Score:
    rewards = outcome.get("rewards", {})
    reward = reward_sum(rewards.values()) if rewards else outcome.get("reward")
    passed = failure is None and reward is not None and reward >= 1.0
    verdict = Verdict.ACCEPTED if passed else Verdict.WRONG_ANSWER
    return Score(
        job_id=request.session,
        verdict=verdict if failure is None else Verdict.INFRA_ERROR,
        reward=reward if failure is None else None,
        passed=int(passed),
        detail="the environment's own reward" if failure is None else str(failure),
        rewards=rewards if failure is None else {},
        cause="" if failure is None else failure.reason,
    )
