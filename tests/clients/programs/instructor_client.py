"""`instructor`: its modes of OpenAI's and Anthropic's clients."""

import instructor
from anthropic import AsyncAnthropic
from checks import ASK, MODEL, many, run
from openai import AsyncOpenAI
from pydantic import BaseModel

asked = [{"role": "user", "content": ASK}]


class Verdict(BaseModel):
    """Whether it is right."""

    right: bool


def _client(mode: instructor.Mode):
    return instructor.from_openai(AsyncOpenAI(max_retries=0), mode=mode)


class price(BaseModel):
    """The price of an item."""

    item: str


async def _found(mode: instructor.Mode, kind: type[BaseModel] = Verdict) -> BaseModel:
    return await _client(mode).chat.completions.create(
        model=MODEL, messages=asked, response_model=kind, max_retries=1, max_tokens=200
    )


async def structured():
    assert isinstance(await _found(instructor.Mode.JSON_SCHEMA), Verdict)


async def tools():
    assert (await _found(instructor.Mode.TOOLS, price)).item == "lemon"
    client = instructor.from_anthropic(AsyncAnthropic(max_retries=0))
    found = await client.chat.completions.create(
        model=MODEL, messages=asked, response_model=price, max_retries=1, max_tokens=200
    )
    assert found.item == "lemon"


async def responses():
    client = _client(instructor.Mode.RESPONSES_TOOLS)
    found = await client.responses.create(
        model=MODEL, input=ASK, response_model=price, max_retries=1, max_output_tokens=200
    )
    assert found.item == "lemon"


async def stream():
    parts = _client(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        model=MODEL, messages=asked, response_model=Verdict, max_tokens=200
    )
    assert isinstance([part async for part in parts][-1].right, bool)


async def fifty():
    async def one() -> str:
        return str(await _found(instructor.Mode.JSON_SCHEMA))

    await many(one)


run(stream, tools, structured, fifty, responses)
