"""Sums with a Python tool, and the same sums without it."""

from typing import Any

from openai import AsyncOpenAI

from services.orchestrator.rollout.sandbox import sandbox
from services.protocol.reward.workspaces import CallResult
from services.protocol.run.task import Task

CALL = "python "
_TURNS, _TOLD = 3, 40  # calls of the model; characters of a tool's answer


async def rollout(client: AsyncOpenAI, task: Task) -> float:
    """1 if the answer is right; a line that begins with `python` is run, and its value told."""
    messages: Any = task.chat
    async with sandbox() as box:
        for _ in range(_TURNS):
            reply = await client.chat.completions.create(model="policy", messages=messages)
            said = reply.choices[0].message.content or ""
            if not said.startswith(CALL):
                return float(said == task.data["result"])
            messages.append({"role": "assistant", "content": said})
            told = answer_of(await box.python(said.removeprefix(CALL)))
            messages.append({"role": "user", "content": told})
    return 0.0


async def without_tool(client: AsyncOpenAI, task: Task) -> float:
    """1 if the first thing said is the right answer."""
    messages: Any = task.chat
    reply = await client.chat.completions.create(model="policy", messages=messages)
    return float(reply.choices[0].message.content == task.data["result"])


def answer_of(done: CallResult) -> str:
    """What the model is told of its program: the value, what it printed, or its error."""
    error = (done.traceback or done.status).strip().splitlines()[-1]
    return (done.result or done.stdout.strip() or error)[:_TOLD]
