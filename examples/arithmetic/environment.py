"""Two environments for the same tasks: one question and one answer, and an agent with tools."""

import json
import operator
import re
from typing import Any

from openai import AsyncOpenAI

from services.protocol.run.task import Task

_TURNS = 6
_NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
_TOOLS = {"add": operator.add, "multiply": operator.mul}
_NUMBER = re.compile(r"-?\d+")


def grade(answer: str, task: Task) -> float:
    """1 if the last number of the answer is the right one."""
    numbers = _NUMBER.findall(answer.replace(",", ""))
    return float(bool(numbers) and int(numbers[-1]) == task.data["answer"])


async def answer(client: AsyncOpenAI, task: Task) -> float:
    """One answer, graded by a plain function."""
    messages: Any = task.chat
    reply = await client.chat.completions.create(model="policy", messages=messages)
    return grade(reply.choices[0].message.content or "", task)


async def agent(client: AsyncOpenAI, task: Task) -> float:
    """Up to six turns with two tools, then the answer is graded the same way."""
    messages: Any = task.chat
    tools: Any = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"type": "object", "properties": _NUMBERS, "required": ["a", "b"]},
            },
        }
        for name in _TOOLS
    ]
    for _ in range(_TURNS):
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
        message = reply.choices[0].message
        if not message.tool_calls:
            return grade(message.content or "", task)
        messages.append(message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": use_tool(call)}
            for call in message.tool_calls
        ]
    return 0.0


def use_tool(call: Any) -> str:
    """The tool's answer; a mistake of the model is answered, too, and raises nothing."""
    try:
        given = json.loads(call.function.arguments)
        return str(_TOOLS[call.function.name](int(given["a"]), int(given["b"])))
    except (KeyError, ValueError, TypeError) as error:
        return f"error: {error!r}"
