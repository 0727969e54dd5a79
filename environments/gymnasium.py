"""Environments of the package `gymnasium` whose observations and actions can be told in words.

The file that a run file names as its environment has one line for it:

    rollout = gymnasium_rollout("my_package:Maze-v0")

and its tasks, each of which begins the environment from a seed of its own, are written by

    python -m environments.gymnasium tasks.jsonl --tasks 500 --heldout 50 --prompt "Find the door."
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from environments.problems import problems_on_stderr
from environments.turns import MAX_TURNS, Read, Rollout, take_turns
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_sum import reward_sum
from services.protocol.run.task import Task


def gymnasium_rollout(
    name: str,
    *,
    read: Read | None = None,
    show: Callable[[Any], str] = str,
    max_turns: int = MAX_TURNS,
    **arguments: Any,
) -> Rollout:
    """A rollout function that plays the environment; returns the sum of its rewards.

    An observation is the model's next message. An answer that means no action is answered by why,
    and counts as a turn. An error inside the environment is an error of the episode.

    Args:
        name: as `gymnasium.make` takes it.
        read: the action that an answer means; None: the answer itself where actions are text, and
            the number that it consists of where they are numbers.
        show: an observation in words.
        max_turns: answers of the model, at most.
        arguments: of the environment.

    Raises:
        InvalidInput: gymnasium is not there, or the environment cannot be played.
    """
    make = _library(name).make
    try:
        space = make(name, **arguments).action_space
    except Exception as error:
        raise InvalidInput("gymnasium environment", name, f"It cannot be made: {error}") from error
    action = read or _reader(name, space)

    async def rollout(client: AsyncOpenAI, task: Task) -> float:
        environment = await asyncio.to_thread(make, name, **arguments)
        try:
            return await _play(environment, client, task)
        finally:
            await asyncio.to_thread(environment.close)

    async def _play(environment: Any, client: AsyncOpenAI, task: Task) -> float:
        rewards: list[float] = []

        async def step(chosen: Any) -> tuple[str, bool]:
            seen, reward, terminated, truncated, _ = await asyncio.to_thread(
                environment.step, chosen
            )
            rewards.append(float(reward))
            return show(seen), terminated or truncated

        seen, _ = await asyncio.to_thread(environment.reset, seed=task.data.get("seed"))
        await take_turns(client, task, show(seen), action, step, max_turns)
        return reward_sum(rewards)

    return rollout


def _library(name: str) -> Any:
    try:
        return import_module("gymnasium")
    except ImportError:
        raise InvalidInput("gymnasium environment", name, "`pip install gymnasium`.") from None


def _reader(name: str, space: Any) -> Read:
    spaces = import_module("gymnasium.spaces")
    if isinstance(space, spaces.Text):
        return str.strip
    if isinstance(space, spaces.Discrete):
        return lambda said: _number(said, space)
    fix = f"Its actions are {space}: say by read=... which one an answer means."
    raise InvalidInput("gymnasium environment", name, fix)


def _number(said: str, space: Any) -> int:
    word = said.strip()
    number = int(word) if word.removeprefix("-").isdecimal() else None
    if number is None or not space.contains(number):
        first = int(space.start)
        raise ValueError(f"say a number from {first} to {first + int(space.n) - 1}")
    return number


def task_rows(tasks: int, heldout: int, prompt: str) -> Iterator[dict[str, Any]]:
    """Rows of a task file, whose seeds are all different."""
    for number in range(tasks + heldout):
        split = "train" if number < tasks else "heldout"
        yield {
            "task_id": f"{split}-{number}",
            "split": split,
            "messages": [{"role": "system", "content": prompt}],
            "data": {"seed": number},
        }


@problems_on_stderr()
def main() -> None:
    """Write a task file."""
    parser = argparse.ArgumentParser(description="Write tasks for a gymnasium environment.")
    parser.add_argument("out", type=Path, help="task file to write, JSON lines")
    parser.add_argument("--tasks", type=int, default=500, help="to train on")
    parser.add_argument("--heldout", type=int, default=50, help="to evaluate")
    parser.add_argument("--prompt", required=True, help="what the model is told first")
    given = parser.parse_args()
    with given.out.open("w", encoding="utf-8") as file:
        for row in task_rows(given.tasks, given.heldout, given.prompt):
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
