"""Servers of the package `openenv-core`, started and played as an environment does."""

import asyncio
import sys
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from tests.adapters.clerk import Clerk

pytest.importorskip("openenv")

from environments.openenv import Server, openenv_rollout, started

COMMAND = f"{sys.executable} -m tests.adapters.openenv_server {{port}}"
ACT = {"number": int}


def task(seed: int = 3) -> Task:
    message = {"role": "system", "content": "Guess a number."}
    row = {"task_id": "t", "split": "train", "messages": [message], "data": {"seed": seed}}
    return Task.model_validate(row)


@pytest.fixture
def servers() -> Any:
    made = started(COMMAND)
    yield made
    for one in made:
        one.end()


async def test_an_episode_is_played_on_a_server_that_was_started(servers: Any) -> None:
    play, clerk = openenv_rollout(servers, ACT), Clerk(*map(str, range(10)))
    assert await play(clerk, task()) == pytest.approx(1.0 - 0.1 * (number_of(clerk)))
    told = [one["content"] for one in clerk.heard]
    assert told[:2] == ["Guess a number.", "guess"]


def number_of(clerk: Clerk) -> int:
    """Of the episode: how many guesses were wrong."""
    return sum(one["content"] == "higher" for one in clerk.heard)


async def test_an_answer_that_is_no_action_is_answered(servers: Any) -> None:
    clerk = Clerk("nine", "10")
    assert await openenv_rollout(servers, ACT, max_turns=2)(clerk, task()) == pytest.approx(-0.1)
    assert "That is no action: invalid literal" in clerk.heard[-1]["content"]


async def test_a_server_that_died_costs_its_episode_and_is_started_again(servers: Any) -> None:
    play = openenv_rollout(servers, ACT)
    with pytest.raises(Exception, match="close"):
        await play(Clerk("99"), task())
    assert await play(Clerk(*map(str, range(10))), task()) > 0


async def test_episodes_wait_for_a_place_on_a_server(servers: Any) -> None:
    play = openenv_rollout(servers, ACT)  # the server takes one at a time and refuses a second
    scores = await asyncio.gather(*(play(Clerk(*map(str, range(10))), task(n)) for n in range(4)))
    assert all(score > 0 for score in scores)


async def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.openenv._HEALTH_S", 0.5)
    with pytest.raises(RuntimeError, match="is not healthy"):
        await Server("http://127.0.0.1:9").ready()


async def test_a_command_that_ends_at_once_is_named() -> None:
    (server,) = started(f"{sys.executable} -c pass")
    with pytest.raises(RuntimeError, match="ended: 0"):
        await server.ready()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv.core.generic_client", None)
    with pytest.raises(InvalidInput, match="pip install openenv-core"):
        openenv_rollout(["http://127.0.0.1:9"], ACT)
