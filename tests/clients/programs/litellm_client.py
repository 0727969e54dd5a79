"""`litellm`: the providers `openai` and `anthropic`, and Responses."""

import json

import litellm
from checks import ASK, ITEMS, MODEL, ROOT, many, run

asked = [{"role": "user", "content": ASK}]
parameters = {
    "type": "object",
    "properties": {"item": {"enum": list(ITEMS)}},
    "required": ["item"],
    "additionalProperties": False,
}
price = {
    "type": "function",
    "function": {"name": "price", "strict": True, "parameters": parameters},
}
OPENAI, ANTHROPIC = f"openai/{MODEL}", f"anthropic/{MODEL}"


async def _said(model: str = OPENAI) -> str:
    more = {"api_base": ROOT} if model == ANTHROPIC else {}
    answer = await litellm.acompletion(
        model=model, messages=asked, max_tokens=16, temperature=0, num_retries=0, **more
    )
    return answer.choices[0].message.content or ""


async def answer():
    assert await _said()
    assert await _said(ANTHROPIC)


async def stream():
    parts = await litellm.acompletion(
        model=OPENAI, messages=asked, max_tokens=16, temperature=0, stream=True
    )
    text = "".join([part.choices[0].delta.content or "" async for part in parts if part.choices])
    assert text == await _said(), text


async def tools():
    for model, more in ((OPENAI, {}), (ANTHROPIC, {"api_base": ROOT})):
        answer = await litellm.acompletion(
            model=model,
            messages=asked,
            tools=[price],
            tool_choice="required",
            max_tokens=200,
            **more,
        )
        (call,) = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["item"] in ITEMS


async def structured():
    schema = {"name": "item", "schema": parameters}
    answer = await litellm.acompletion(
        model=OPENAI,
        messages=asked,
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=200,
    )
    assert json.loads(answer.choices[0].message.content)["item"] in ITEMS


async def cancel():
    parts = await litellm.acompletion(
        model=OPENAI, messages=asked, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in parts:
        break
    await parts.aclose()


async def fifty():
    await many(_said)


async def responses():
    answer = await litellm.aresponses(model=OPENAI, input=ASK, max_output_tokens=16)
    assert answer.output


run(answer, stream, tools, structured, cancel, fifty, responses)
