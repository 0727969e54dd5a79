"""`openai-agents`, whose models speak Responses unless they are told to chat."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import ASK, MODEL, many, run
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(disabled=True)
client = AsyncOpenAI(max_retries=0)
MODELS = (OpenAIResponsesModel(MODEL, client), OpenAIChatCompletionsModel(MODEL, client))


class Verdict(BaseModel):
    right: bool


@function_tool
def price() -> str:
    """The price of a lemon."""
    return "7"


def _agent(model=MODELS[0], *, max_tokens=100, **more) -> Agent:
    choice = more.pop("tool_choice", None)
    settings = ModelSettings(max_tokens=max_tokens, tool_choice=choice)
    return Agent(name="clerk", model=model, model_settings=settings, **more)


async def _said() -> str:
    return str((await Runner.run(_agent(), ASK)).final_output)


async def answer():
    for model in MODELS:
        assert (await Runner.run(_agent(model), ASK)).final_output


async def stream():
    for model in MODELS:
        result = Runner.run_streamed(_agent(model), ASK)
        assert [event async for event in result.stream_events()]
        assert result.final_output


async def tools():
    for model in MODELS:
        agent = _agent(
            model,
            max_tokens=200,
            tools=[price],
            tool_choice="required",
            tool_use_behavior="stop_on_first_tool",
        )
        assert (await Runner.run(agent, ASK)).final_output == "7"


async def structured():
    for model in MODELS:
        agent = _agent(model, max_tokens=200, output_type=Verdict)
        assert isinstance((await Runner.run(agent, ASK)).final_output, Verdict)


async def cancel():
    result = Runner.run_streamed(_agent(max_tokens=400), ASK)
    async for _ in result.stream_events():
        break
    result.cancel()


async def fifty():
    await many(_said)


run(answer, stream, tools, structured, cancel, fifty)
