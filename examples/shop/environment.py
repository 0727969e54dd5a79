"""A clerk with two tools: the price list, and a calculator that multiplies and adds."""

from typing import Any

from openai import AsyncOpenAI

from services.protocol.run.task import Task

_TURNS = 5
_SIGNS = {"times": int.__mul__, "plus": int.__add__}


async def rollout(client: AsyncOpenAI, task: Task) -> float:
    """One customer: 1 if the clerk asks for the right sum within five turns."""
    messages: Any = task.chat
    for _ in range(_TURNS):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        said = reply.choices[0].message.content or ""
        word, *rest = said.split()[:3] or [""]
        if word == "pay":
            return float(rest == [str(task.data["total"])])
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": use_tool(word, rest, task)})
    return 0.0


def use_tool(word: str, rest: list[str], task: Task) -> str:
    """The tool's answer; a mistake of the model is answered, too, and raises nothing."""
    if word == "price" and len(rest) == 1:
        return str(task.data["prices"].get(rest[0], "none"))
    if word in _SIGNS and len(rest) == 2 and all(one.isdigit() for one in rest):
        return str(_SIGNS[word](int(rest[0]), int(rest[1])))
    return "none"
