"""Real gymnasium environments, played through the client that an environment gets."""

import json
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from environments import gymnasium as adapter
from environments.gymnasium import gymnasium_rollout, task_rows
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from tests.adapters.clerk import Clerk


class Guess(gymnasium.Env):
    """A number below ten, drawn by the seed; each wrong guess costs a tenth."""

    observation_space = spaces.Text(20)
    action_space = spaces.Discrete(10)
    closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(10))
        return "guess", {}

    def step(self, action):
        if action == self.number:
            return "right", 1.0, True, False, {}
        return "higher" if self.number > action else "lower", -0.1, False, False, {}

    def close(self):
        type(self).closed += 1


class Echo(gymnasium.Env):
    """One turn, paid by its length."""

    observation_space = spaces.Text(20)
    action_space = spaces.Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "say", {}

    def step(self, action):
        return "", float(len(action)), False, True, {}


class Steer(Echo):
    action_space = spaces.Box(-1.0, 1.0)


for kind in (Guess, Echo, Steer):
    gymnasium.register(f"millrace/{kind.__name__}-v0", entry_point=kind)


def task(seed: int = 0) -> Task:
    row = {"task_id": "t", "split": "train", "data": {"seed": seed}}
    return Task.model_validate(row | {"messages": [{"role": "system", "content": "a game"}]})


def number_of(seed: int) -> int:
    environment = gymnasium.make("millrace/Guess-v0").unwrapped
    environment.reset(seed=seed)
    return environment.number


async def test_an_episode_is_played_from_its_tasks_seed_and_its_rewards_are_added() -> None:
    play, seed = gymnasium_rollout("millrace/Guess-v0"), 3
    right = number_of(seed)
    wrong = (right + 1) % 10
    clerk, closed = Clerk(str(wrong), f" {right}\n"), Guess.closed
    assert await play(clerk, task(seed)) == pytest.approx(0.9)
    told = [(one["role"], one["content"]) for one in clerk.heard]
    assert told[:2] == [("system", "a game"), ("user", "guess")]
    assert told[3] == ("user", "lower" if wrong > right else "higher")
    assert Guess.closed == closed + 1


async def test_an_answer_that_means_no_action_is_answered_and_costs_a_turn() -> None:
    play = gymnasium_rollout("millrace/Guess-v0", max_turns=2)
    clerk = Clerk("nine", "10")
    assert await play(clerk, task()) == 0.0
    assert clerk.heard[-1]["content"] == "That is no action: say a number from 0 to 9."


async def test_text_is_an_action_as_it_is() -> None:
    assert await gymnasium_rollout("millrace/Echo-v0")(Clerk(" four "), task()) == 4.0


async def test_other_actions_need_a_reader() -> None:
    with pytest.raises(InvalidInput, match=r"Its actions are Box.*read="):
        gymnasium_rollout("millrace/Steer-v0")
    play = gymnasium_rollout("millrace/Steer-v0", read=lambda said: [float(said)])
    assert await play(Clerk("0.5"), task()) == 1.0


async def test_an_environment_that_raises_fails_its_episode(monkeypatch) -> None:
    def broken(self: Any, action: Any) -> Any:
        raise OSError("no such door")

    monkeypatch.setattr(Guess, "step", broken)
    with pytest.raises(OSError, match="no such door"):
        await gymnasium_rollout("millrace/Guess-v0")(Clerk("1"), task())


@pytest.mark.parametrize("name", ["millrace/Nothing-v0", "no_such_module:X-v0"])
def test_an_unknown_environment_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"gymnasium environment.*It cannot be made"):
        gymnasium_rollout(name)


def test_without_gymnasium_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InvalidInput, match="pip install gymnasium"):
        gymnasium_rollout("millrace/Guess-v0")


def test_tasks_have_seeds_of_their_own(tmp_path, monkeypatch) -> None:
    out = tmp_path / "tasks.jsonl"
    options = ["--tasks", "3", "--heldout", "2", "--prompt", "a game"]
    monkeypatch.setattr(sys, "argv", ["gymnasium", str(out), *options])
    adapter.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == list(task_rows(3, 2, "a game"))
    assert [row["split"] for row in rows] == ["train"] * 3 + ["heldout"] * 2
    assert len({row["data"]["seed"] for row in rows}) == 5
    assert all(Task.model_validate(row) for row in rows)
