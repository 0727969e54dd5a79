"""Servers of the package `openenv-core`, started and played as an environment does."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from environments.openenv import Pool, Server, openenv_rollout, started
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from tests.adapters.clerk import Clerk

COMMAND = f"{sys.executable} -m tests.adapters.openenv_server {{port}}"
ACT = {"number": int}


def task(seed: int = 3) -> Task:
    message = {"role": "system", "content": "Guess a number."}
    row = {"task_id": "t", "split": "train", "messages": [message], "data": {"seed": seed}}
    return Task.model_validate(row)


@pytest.fixture
def servers() -> Any:
    pytest.importorskip("openenv")
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


async def test_the_state_at_the_end_may_be_the_reward(servers: Any) -> None:
    def score(state: Mapping[str, Any]) -> float:
        assert state["episode_id"] == "the one"
        return state["step_count"] / 8

    play = openenv_rollout(servers, ACT, score=score, max_turns=3)
    assert await play(Clerk("10", "no number", "11"), task()) == 2 / 8


async def test_a_server_by_a_websockets_address_takes_as_many_episodes_as_it_says(
    servers: Any,
) -> None:
    url = await servers[0].ready()
    server = Server(url.replace("http", "ws"), sessions=1)
    play = openenv_rollout([server], ACT, max_turns=1)
    assert await play(Clerk("10"), task()) == pytest.approx(-0.1)
    pool = Pool([Server("http://a", sessions=3), Server("http://b")])
    assert [pool._free.get_nowait().url[-1] for _ in range(4)] == ["a", "b", "a", "a"]


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


async def test_a_server_that_dies_while_it_is_asked_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    command = f"{sys.executable} -m http.server --bind 127.0.0.1 --directory {tmp_path} {{port}}"
    (server,) = started(command)
    try:
        first = await server.ready()
        process = server._process
        process.send_signal(signal.SIGSTOP)
        again = asyncio.create_task(server.ready())
        await asyncio.sleep(0)  # it has found the process and waits for its answer
        process.kill()
        assert await again != first
    finally:
        server.end()


async def test_a_command_that_ends_at_once_is_named() -> None:
    (server,) = started(f"{sys.executable} -c pass")
    with pytest.raises(RuntimeError, match="ended: 0"):
        await server.ready()


@pytest.mark.parametrize("client", [None, object])
def test_without_the_package_it_says_what_to_install(
    client: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = client and SimpleNamespace(GenericEnvClient=client)
    monkeypatch.setitem(sys.modules, "openenv.core.generic_client", found)
    with pytest.raises(InvalidInput, match=r"play --port.*pip install 'openenv-core>=0.2.2'"):
        openenv_rollout(started("play --port {port}"), ACT)
