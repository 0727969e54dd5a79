"""`pydantic-ai`: `openai:` (Responses), `openai-chat:` and `anthropic:`."""

from checks import ASK, MODEL, many, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput

MODELS = (f"openai:{MODEL}", f"openai-chat:{MODEL}", f"anthropic:{MODEL}")
SHORT, LONG = {"max_tokens": 16}, {"max_tokens": 200, "temperature": 0}


class Verdict(BaseModel):
    """Whether it is right."""

    right: bool


async def _said() -> str:
    return (await Agent(MODELS[0], model_settings=SHORT).run(ASK)).output


async def answer():
    for model in MODELS:
        assert (await Agent(model, model_settings=SHORT).run(ASK)).output


async def stream():
    for model in MODELS:
        async with Agent(model, model_settings=SHORT).run_stream(ASK) as result:
            text = "".join([part async for part in result.stream_text(delta=True)])
        assert text, model


async def tools():
    """The model looks a price up, adds, and says the sum."""
    for model in MODELS:
        agent = Agent(model, model_settings=LONG)
        agent.tool_plain(price)
        agent.tool_plain(plus)
        assert (await agent.run(ASK)).output.isdigit(), model


def price(item: str) -> int:
    """The price of an item."""
    return 7


def plus(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


async def structured():
    for model in MODELS[:2]:
        agent = Agent(model, output_type=NativeOutput(Verdict), model_settings=LONG)
        assert isinstance((await agent.run(ASK)).output, Verdict), model


async def cancel():
    settings = {"max_tokens": 400}
    async with Agent(MODELS[1], model_settings=settings).run_stream(ASK) as result:
        async for _ in result.stream_text():
            break


async def fifty():
    await many(_said)


run(answer, stream, tools, structured, cancel, fifty)
