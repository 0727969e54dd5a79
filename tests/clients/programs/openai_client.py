"""`openai`: chat, completions and Responses."""

import json

from checks import ASK, ITEMS, MODEL, many, run
from openai import AsyncOpenAI
from pydantic import BaseModel

client = AsyncOpenAI(max_retries=0)
asked = [{"role": "user", "content": ASK}]
parameters = {
    "type": "object",
    "properties": {"item": {"enum": list(ITEMS)}},
    "required": ["item"],
    "additionalProperties": False,
}


class Verdict(BaseModel):
    right: bool


async def _said(**more) -> str:
    more = {"max_tokens": 16, "temperature": 0, **more}
    answer = await client.chat.completions.create(model=MODEL, messages=asked, **more)
    return answer.choices[0].message.content or ""


async def answer():
    assert await _said()
    done = await client.completions.create(model=MODEL, prompt=ASK, max_tokens=8)
    assert done.usage.completion_tokens > 0


async def stream():
    parts = await client.chat.completions.create(
        model=MODEL, messages=asked, max_tokens=16, temperature=0, stream=True
    )
    text = "".join([part.choices[0].delta.content or "" async for part in parts if part.choices])
    assert text == await _said(), text


async def tools():
    price = {
        "type": "function",
        "function": {"name": "price", "strict": True, "parameters": parameters},
    }
    answer = await client.chat.completions.create(
        model=MODEL, messages=asked, tools=[price], tool_choice="required", max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["item"] in ITEMS


async def structured():
    answer = await client.chat.completions.parse(
        model=MODEL, messages=asked, response_format=Verdict, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


async def cancel():
    parts = await client.chat.completions.create(
        model=MODEL, messages=asked, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in parts:
        break
    await parts.close()


async def fifty():
    await many(_said)


async def responses():
    first = await client.responses.create(model=MODEL, input=ASK, max_output_tokens=16)
    assert first.output_text
    later = await client.responses.create(
        model=MODEL, input="and 3 pen", max_output_tokens=16, previous_response_id=first.id
    )
    assert later.usage.input_tokens > first.usage.input_tokens
    async with client.responses.stream(model=MODEL, input=ASK, max_output_tokens=16) as events:
        kinds = {event.type async for event in events}
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds or (
        "response.incomplete" in kinds
    ), kinds
    parsed = await client.responses.parse(
        model=MODEL, input=ASK, text_format=Verdict, max_output_tokens=200
    )
    assert isinstance(parsed.output_parsed, Verdict)


run(answer, stream, tools, structured, cancel, fifty, responses)
