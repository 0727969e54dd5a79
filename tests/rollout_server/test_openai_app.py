"""What vLLM's application can do, asked of a replica's server with a real engine."""

import json
import re
from typing import Any

import pytest

from .http_served import MODEL, HttpServed

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASK: list[Any] = [{"role": "user", "content": "Where?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "strict": True, "parameters": CITY}}
]


async def chat(app: HttpServed, **options: Any) -> Any:
    return await app.client.chat.completions.create(model=MODEL, messages=ASK, **options)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_tool_that_must_be_called_is_called_with_arguments_of_its_schema(
    app: HttpServed, choice: Any
) -> None:
    answer = await chat(app, tools=TOOLS, tool_choice=choice, max_tokens=200, n=12)
    # The model is random, and may still be writing another call when its tokens are spent.
    ended = [one.message.tool_calls for one in answer.choices if one.finish_reason != "length"]
    assert ended, answer
    assert all(ended), answer
    for call in [call for calls in ended for call in calls]:
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Bern"), call


async def test_tools_may_be_left_to_the_model(app: HttpServed) -> None:
    answer = await chat(app, tools=TOOLS, tool_choice="auto", max_tokens=8)
    assert answer.choices[0].finish_reason == "length"


async def test_reasoning_is_kept_apart_from_the_answer(app: HttpServed) -> None:
    thought = await chat(
        app,
        max_tokens=60,
        extra_body={
            "structured_outputs": {"regex": "[ab]{3}"},
            "chat_template_kwargs": {"thinking": True},
        },
    )
    message = thought.choices[0].message
    # The model never writes </think>, so all of it is reasoning.
    assert re.fullmatch("[ab]{3}", message.reasoning)
    assert not message.content


async def test_an_answer_keeps_to_a_json_schema(app: HttpServed) -> None:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    answer = await app.client.completions.create(
        model=MODEL, prompt="abc", max_tokens=100, extra_body={"response_format": shape}
    )
    assert json.loads(answer.choices[0].text)["city"] in ("Oslo", "Bern")


async def test_an_answer_keeps_to_a_regular_expression(app: HttpServed) -> None:
    answer = await app.client.completions.create(
        model=MODEL,
        prompt="abc",
        max_tokens=50,
        extra_body={"structured_outputs": {"regex": "[0-9]{3}-[xyz]"}},
    )
    assert re.fullmatch("[0-9]{3}-[xyz]", answer.choices[0].text)


async def test_several_answers_come_with_the_likeliest_alternatives(app: HttpServed) -> None:
    answer = await chat(app, n=3, max_tokens=5, logprobs=True, top_logprobs=2, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        for token in choice.logprobs.content:
            assert token.logprob <= 0
            assert len(token.top_logprobs) == 2


async def test_a_stream_has_the_tokens_of_the_whole_answer(app: HttpServed) -> None:
    settings: dict[str, Any] = {"prompt": "abc", "max_tokens": 20, "temperature": 0.0}
    whole = await app.client.completions.create(model=MODEL, **settings)
    pieces = await app.client.completions.create(model=MODEL, stream=True, **settings)
    text = "".join([piece.choices[0].text async for piece in pieces])
    assert text == whole.choices[0].text


async def test_text_becomes_tokens_and_comes_back(app: HttpServed) -> None:
    tokens = await app.post("/tokenize", {"model": MODEL, "prompt": "abc def"})
    assert tokens["count"] == len(tokens["tokens"]) == 7
    text = await app.post("/detokenize", {"model": MODEL, "tokens": tokens["tokens"]})
    assert text["prompt"] == "abc def"


async def test_tokens_go_in_and_tokens_come_out(app: HttpServed) -> None:
    prompt = [40, 50, 60]
    answer = await app.client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=6,
        temperature=0.0,
        extra_body={"return_token_ids": True},
    )
    choice = answer.choices[0].model_dump()
    assert choice["prompt_token_ids"] == prompt
    assert len(choice["token_ids"]) == 6
    generated = await app.post(
        "/inference/v1/generate",
        {
            "model": MODEL,
            "token_ids": prompt,
            "sampling_params": {"max_tokens": 6, "temperature": 0.0},
        },
    )
    assert generated["choices"][0]["token_ids"] == choice["token_ids"]


async def test_the_served_model_is_listed(app: HttpServed) -> None:
    models = [model async for model in app.client.models.list()]
    assert [model.id for model in models] == [MODEL]
