"""A clerk with two tools: the price list, and a calculator that multiplies and adds."""

from typing import Any

from openai import AsyncOpenAI

from services.protocol.run.task import Task

STEP = 0.25
_TURNS = 5
_SIGNS = {"times": int.__mul__, "plus": int.__add__}


async def rollout(client: AsyncOpenAI, task: Task) -> float:
    """One customer: 1 if the clerk asks for the right sum within five turns."""
    return float((await by_turn(client, task))[-1] == 1.0)


async def by_name(client: AsyncOpenAI, task: Task) -> dict[str, float]:
    """The same: the reward for the right sum, and the number of steps towards it."""
    earned = await by_turn(client, task)
    paid = float(earned[-1] == 1.0)
    return {"paid": paid, "steps": (sum(earned) - paid) / STEP}


async def by_turn(client: AsyncOpenAI, task: Task) -> list[float]:
    """The same: a reward of each turn, `STEP` for the price and for the sum when a tool says it."""
    messages: Any = task.chat
    item = str(messages[0]["content"]).split()[1]
    wanted = [str(task.data["prices"][item]), str(task.data["total"])]
    earned: list[float] = []
    for _ in range(_TURNS):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        said = reply.choices[0].message.content or ""
        word, *rest = said.split()[:3] or [""]
        if word == "pay":
            return [*earned, float(rest == [str(task.data["total"])])]
        told = use_tool(word, rest, task)
        earned.append(STEP if wanted and told == wanted[0] else 0.0)
        wanted = wanted[1:] if earned[-1] else wanted
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": told})
    return earned


def use_tool(word: str, rest: list[str], task: Task) -> str:
    """The tool's answer; a mistake of the model is answered, too, and raises nothing."""
    if word == "price" and len(rest) == 1:
        return str(task.data["prices"].get(rest[0], "none"))
    if word in _SIGNS and len(rest) == 2 and all(one.isdigit() for one in rest):
        return str(_SIGNS[word](int(rest[0]), int(rest[1])))
    return "none"
