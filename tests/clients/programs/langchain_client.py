"""`langchain-openai`: chat and Responses."""

from checks import ASK, MODEL, many, run
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class price(BaseModel):
    """The price of an item."""

    item: str


@tool
def plus(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


chat = ChatOpenAI(model=MODEL, max_tokens=200, temperature=0, max_retries=0, stream_usage=True)


async def _said() -> str:
    return (await chat.ainvoke(ASK)).content


async def answer():
    assert await _said()


async def stream():
    text = "".join([part.content async for part in chat.astream(ASK)])
    assert text == await _said(), text


async def tools():
    answer = await chat.bind_tools([price, plus], tool_choice="required", strict=True).ainvoke(ASK)
    assert [call["name"] for call in answer.tool_calls] == ["price"]


async def structured():
    for method in ("json_schema", "function_calling"):
        found = await chat.with_structured_output(price, method=method).ainvoke(ASK)
        assert found.item, method


async def cancel():
    long = ChatOpenAI(model=MODEL, max_tokens=400, extra_body={"ignore_eos": True})
    async for _ in long.astream(ASK):
        break


async def fifty():
    await many(_said)


async def responses():
    answer = await ChatOpenAI(model=MODEL, use_responses_api=True, max_tokens=16).ainvoke(ASK)
    assert answer.text


run(answer, stream, tools, structured, cancel, fifty, responses)
