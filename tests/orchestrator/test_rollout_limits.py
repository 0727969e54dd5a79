"""A rollout may take any time as long as it makes progress, and not much without; virtual time."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.environment_process import EnvironmentProcess
from services.orchestrator.rollout.episodes import EpisodeSampler
from services.orchestrator.rollout.limits import LimitReached, RolloutLimits, limited
from services.orchestrator.rollout.outside_agents import OutsideAgents
from services.orchestrator.rollout.rollout import RolloutFailed, RolloutRequest
from services.orchestrator.rollout.session_client import SessionClient
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.session import OfferState, SessionSummary
from tests.orchestrator.random_schedule import RandomSchedule, play
from tests.orchestrator.simulated_cluster import Weather
from tests.orchestrator.virtual_clock import run_virtually

HOUR = 3600.0
DEFAULTS = RolloutLimits(total_s=None, progress_s=600.0, taken_s=2 * HOUR)
KEYS: dict[str, Any] = {"name": "x", "model": "m", "steps": 1, "batch_groups": 1}


def test_a_run_file_without_limits_has_one_on_progress_and_one_on_episodes_that_were_taken() -> (
    None
):
    run = RunConfig.model_validate(KEYS | {"task_file": "t", "group_size": 2})
    assert RolloutLimits.of(run) == DEFAULTS


def test_the_conversation_of_a_live_agent_has_no_deadline() -> None:
    live = {"environment": "live", "algorithm": {"advantage": "reinforce_plus_plus"}}
    run = RunConfig.model_validate(KEYS | live | {"group_size": 1})
    assert RolloutLimits.of(run).taken_s is None


def ended(limits: RolloutLimits, signs: list[float]) -> tuple[str, float]:
    """Why and when a rollout that never ends, with signs of progress at these times, is given
    up."""

    async def rollout() -> tuple[str, float]:
        try:
            async with limited(limits) as progressed:
                for sign in signs:
                    await asyncio.sleep(sign - time.monotonic())
                    progressed()
                await asyncio.Event().wait()
        except LimitReached as limit:
            return limit.reason, time.monotonic()
        raise AssertionError("it ended by itself")

    return run_virtually(rollout)


def test_progress_now_and_then_keeps_a_rollout_open_for_hours() -> None:
    signs = [one * 599.0 for one in range(1, 25)]
    assert ended(DEFAULTS, signs) == ("no_progress", pytest.approx(24 * 599.0 + 600.0))


def test_a_rollout_without_any_sign_is_given_up() -> None:
    assert ended(DEFAULTS, []) == ("no_progress", pytest.approx(600.0))


def test_a_total_limit_holds_whatever_the_progress() -> None:
    limits = RolloutLimits(total_s=HOUR, progress_s=600.0)
    assert ended(limits, [60.0 * one for one in range(1, 60)]) == ("deadline", pytest.approx(HOUR))


def test_a_timeout_of_the_rollout_itself_is_none_of_its_limits() -> None:
    async def rollout() -> None:
        async with limited(DEFAULTS):
            async with asyncio.timeout(1.0):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_virtually(rollout)


REQUEST = RolloutRequest(
    session="s", messages=[], n=2, temperature=1.0, max_tokens=9, seed=0, limits=DEFAULTS
)


def _activity(calls: Callable[[float], tuple[int, int]], taken_at: float | None = None) -> Any:
    """As `SessionClient.activity`, with calls by virtual time; fewer than none: no router.

    `taken_at` is when an agent takes it, None for an episode that is not offered.
    """

    def offer() -> OfferState:
        if taken_at is None:
            return "none"
        return "waiting" if time.monotonic() < taken_at else "taken"

    async def activity(_: SessionClient, name: str) -> SessionSummary:
        made, open_calls = calls(time.monotonic())
        if made < 0:
            raise RolloutFailed("connection", "the router is away")
        return SessionSummary(
            id=name,
            state="open",
            created=0,
            metadata={},
            reward=None,
            cursor=None,
            calls={"first": made},
            open_calls=open_calls,
            unrecorded_calls=0,
            tokens=0,
            trajectory_count=0,
            trajectory_tokens=0,
            offer=offer(),
        )

    return activity


def episode_ended(
    calls: Callable[[float], tuple[int, int]], taken_at: float | None = None
) -> tuple[str, float]:
    """Why and when an episode that never ends is given up; `calls` says how many it has made by a
    time, and how many are open."""
    environment = EnvironmentProcess("e.py:r")
    player = environment if taken_at is None else OutsideAgents(OrchestratorConfig(), "r")
    sampler = EpisodeSampler(OrchestratorConfig(), player=player, model="m", run_id="r")

    async def episode() -> tuple[str, float]:
        async def forever(_: object) -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        with (
            mock.patch.object(SessionClient, "activity", _activity(calls, taken_at)),
            mock.patch.object(sampler, "_http", object()),
            mock.patch.object(sampler._player, "run", forever),
        ):
            try:
                await sampler._played({}, "sess_1", REQUEST)
            except RolloutFailed as failure:
                return failure.reason, time.monotonic()
        raise AssertionError("it ended by itself")

    return run_virtually(episode)


def test_an_episode_with_an_open_call_makes_progress_for_as_long_as_the_router_lets_it() -> None:
    reason, at = episode_ended(lambda now: (1, int(now < 5 * HOUR)))
    assert reason == "environment_stalled"
    assert 5 * HOUR < at < 5 * HOUR + 600.0 + 150.0


def test_an_episode_that_an_agent_took_and_never_ends_has_a_deadline_from_the_taking() -> None:
    reason, at = episode_ended(lambda now: (int(now // 60.0), 1), taken_at=550.0)
    assert reason == "agent_timeout"
    assert 550.0 + 2 * HOUR <= at <= 550.0 + 150.0 + 2 * HOUR


def test_an_episode_that_calls_the_policy_now_and_then_makes_progress() -> None:
    reason, at = episode_ended(lambda now: (int(min(now, 2 * HOUR) // 300.0), 0))
    assert reason == "environment_stalled"
    assert 2 * HOUR <= at < 2 * HOUR + 600.0 + 150.0


def test_an_episode_that_does_nothing_or_whose_router_is_away_is_given_up() -> None:
    assert episode_ended(lambda _: (0, 0)) == ("environment_stalled", pytest.approx(600.0))
    assert episode_ended(lambda _: (-1, 0)) == ("environment_stalled", pytest.approx(600.0))


def long_answers(**weather: Any) -> RandomSchedule:
    """A run without limits of its own whose answers take hours."""
    return RandomSchedule(
        seed=1,
        schedule={"preset": "sync"},
        run={"steps": 3, "batch_groups": 2, "group_size": 4},
        orchestrator={"rollout_retries": 1},
        replicas=2,
        weather=Weather(**({"answer_s": 3 * HOUR, "tail": 0.5} | weather)),
    )


@pytest.mark.usefixtures("no_drawing")
def test_answers_that_take_longer_than_the_old_total_limit_are_trained(tmp_path: Path) -> None:
    life, status = play(long_answers(), tmp_path)
    assert life.witness.problems == []
    assert (status.state, status.step, status.failures) == (RunState.FINISHED, 3, {})


@pytest.mark.usefixtures("no_drawing")
def test_groups_that_show_nothing_are_counted_by_that_reason(tmp_path: Path) -> None:
    life, status = play(long_answers(answer_s=20.0, stuck=0.1), tmp_path)
    assert life.witness.problems == []
    assert status.state is RunState.FINISHED
    assert status.failures.get("no_progress", 0) > 0
    assert set(status.failures) == {"no_progress"}
