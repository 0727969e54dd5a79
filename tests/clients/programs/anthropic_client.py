"""`anthropic`: Messages."""

from anthropic import AsyncAnthropic
from checks import ASK, ITEMS, MODEL, many, run

client = AsyncAnthropic(max_retries=0)
asked = [{"role": "user", "content": ASK}]
schema = {
    "type": "object",
    "properties": {"item": {"enum": list(ITEMS)}},
    "required": ["item"],
    "additionalProperties": False,
}


async def _said() -> str:
    answer = await client.messages.create(
        model=MODEL, messages=asked, max_tokens=16, extra_body={"temperature": 0}
    )
    return "".join(block.text for block in answer.content if block.type == "text")


async def answer():
    assert await _said()
    counted = await client.messages.count_tokens(model=MODEL, messages=asked)
    assert counted.input_tokens > 0


async def stream():
    async with client.messages.stream(
        model=MODEL, messages=asked, max_tokens=16, extra_body={"temperature": 0}
    ) as parts:
        text = "".join([part async for part in parts.text_stream])
    assert text == await _said(), text


async def tools():
    price = {"name": "price", "description": "of one", "input_schema": schema, "strict": True}
    answer = await client.messages.create(
        model=MODEL,
        messages=asked,
        tools=[price],
        tool_choice={"type": "any"},
        max_tokens=200,
    )
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.input["item"] in ITEMS
    assert answer.stop_reason == "tool_use"


async def structured():
    answer = await client.messages.create(
        model=MODEL,
        messages=asked,
        max_tokens=200,
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    )
    assert '"item"' in answer.content[0].text


async def cancel():
    async with client.messages.stream(
        model=MODEL, messages=asked, max_tokens=400, extra_body={"ignore_eos": True}
    ) as parts:
        async for _ in parts:
            break


async def fifty():
    await many(_said)


run(answer, stream, tools, structured, cancel, fifty)
