"""`inspect-ai`: the provider `openai/` over Responses and over chat, and an evaluation."""

from checks import ASK, MODEL, many, run
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

SHORT, LONG = GenerateConfig(max_tokens=16), GenerateConfig(max_tokens=200)


class Verdict(BaseModel):
    right: bool


@tool
def price():
    async def execute(item: str) -> str:
        """The price of an item.

        Args:
            item: its name.
        """
        return "7"

    return execute


def _model(*, responses: bool = False, config: GenerateConfig = SHORT):
    return get_model(f"openai/{MODEL}", config=config, responses_api=responses, memoize=False)


async def _said() -> str:
    return (await _model().generate(ASK)).completion


async def answer():
    assert await _said()


async def tools():
    answer = await _model(config=LONG).generate(ASK, tools=[price()], tool_choice="any")
    assert [call.function for call in answer.message.tool_calls or []] == ["price"]


async def structured():
    schema = ResponseSchema(name="verdict", json_schema=json_schema(Verdict))
    config = GenerateConfig(max_tokens=96, response_schema=schema)
    answer = await _model(config=config).generate(ASK)
    assert Verdict.model_validate_json(answer.completion)


async def responses():
    assert (await _model(responses=True).generate(ASK)).completion


async def fifty():
    await many(_said)


run(answer, tools, structured, fifty, responses)
