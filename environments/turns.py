"""The conversation of an environment that takes actions: what both sides say, turn by turn."""

from collections.abc import Awaitable, Callable
from typing import Any

from openai import AsyncOpenAI

from services.protocol.run.task import Task

Rollout = Callable[[AsyncOpenAI, Task], Awaitable[float]]
"""A rollout function, as a run file names one: it returns one episode's reward."""

Read = Callable[[str], Any]
"""The action that an answer means; raises ValueError if it means none."""

MAX_TURNS = 64


async def take_turns(
    client: AsyncOpenAI,
    task: Task,
    first: str,
    read: Read,
    step: Callable[[Any], Awaitable[tuple[str, bool]]],
    max_turns: int,
) -> None:
    """Have the model act until the environment ends the episode, or for so many turns.

    An answer that means no action is answered by why, and counts as a turn.

    Args:
        client: of the policy.
        task: begins the conversation.
        first: what the environment shows at first.
        read: see `Read`.
        step: does an action; returns what it shows, and whether the episode is over.
        max_turns: answers of the model, at most.
    """
    messages: Any = [*task.chat, {"role": "user", "content": first}]
    for _ in range(max_turns):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        said = reply.choices[0].message.content or ""
        try:
            action = read(said)
        except ValueError as error:
            told = f"That is no action: {error}."
        else:
            told, over = await step(action)
            if over:
                return
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": told})
