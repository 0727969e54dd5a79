"""examples/outside_agent: its agent, who serves it, and the model's teaching fit together."""

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from agents import Model, ModelProvider, ModelResponse, Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from examples.outside_agent import agent, make_model, play
from examples.shop.tasks import purchases
from examples.tiny_code.tokenizer import train_tokenizer
from services.protocol.run.orchestrator import RunConfig
from tests.outside.conftest import cluster, request, sampler

FOLDER = Path(agent.__file__).parent
CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>")

__all__ = ["cluster"]


class Clerk(Model, ModelProvider):
    """A model that says these lines in turn."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.told: list[str] = []

    def get_model(self, model_name: str | None) -> Model:
        return self

    async def get_response(self, *, input: Any, **_: Any) -> ModelResponse:
        if isinstance(input, list) and input[-1].get("type") == "function_call_output":
            self.told.append(input[-1]["output"])
        said = self._lines.pop(0)
        return ModelResponse(output=[_item(said)], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


def _item(said: str) -> Any:
    call = CALL.fullmatch(said)
    if call is None:
        text = ResponseOutputText(text=said, type="output_text", annotations=[])
        return ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        )
    asked = json.loads(call[1])
    return ResponseFunctionToolCall(
        name=asked["name"],
        arguments=json.dumps(asked["arguments"]),
        call_id=f"call-{asked['name']}",
        type="function_call",
    )


@pytest.mark.parametrize("right", [True, False])
async def test_the_tools_say_what_the_model_was_shown(right: bool) -> None:
    for purchase in purchases()[:20]:
        shown = make_model.shown(purchase, right=right)
        clerk = Clerk(*(said for said, _ in shown.turns))
        asked = await agent.serve(purchase.prompt, purchase.prices, clerk)
        assert clerk.told == [told for _, told in shown.turns[:-1]]
        assert (asked == str(purchase.total)) is right


def test_a_call_is_written_in_later_prompts_as_the_model_said_it() -> None:
    shown = make_model.shown(purchases()[0], right=True)
    tokenizer = train_tokenizer(make_model.texts())
    said, told = shown.turns[0]
    asked = json.loads(CALL.fullmatch(said)[1])  # type: ignore[index]
    function = {"name": asked["name"], "arguments": asked["arguments"]}
    by_client = [
        {"role": "user", "content": shown.prompt},
        {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
        {"role": "tool", "content": told},
    ]
    by_teacher = shown.before(1)
    texts = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for messages in (by_client, by_teacher)
    ]
    assert texts[0] == texts[1]
    assert len(tokenizer.encode(texts[0])) < 100


async def test_it_plays_a_run_and_says_what_was_earned(cluster, monkeypatch) -> None:
    async def without_the_letter(*asked: Any) -> str:
        """This cluster's model puts a letter before the prompt's last line."""
        return (await agent.serve(*asked))[1:]

    monkeypatch.setattr(play, "serve", without_the_letter)
    arrived: list[Any] = []
    asked = request("say\n42", n=2)
    data = {"prices": {"lemon": 6}, "total": 42}
    task = asked.task.model_copy(update={"data": data})
    rollout = dataclasses.replace(asked, task=task)
    async with sampler(cluster) as rollouts, httpx.AsyncClient(base_url=cluster.url) as router:
        sampling = asyncio.create_task(rollouts.sample(rollout, lambda *one: arrived.append(one)))
        for _ in range(2):
            assert await play.serve_next(router)
        await asyncio.wait_for(sampling, 60)
        assert not await play.serve_next(router, 0.1), "there is no more"
    assert [score.reward for *_, score in arrived] == [1.0, 1.0]


def test_its_files_go_together() -> None:
    run = yaml.safe_load((FOLDER / "run.yaml").read_text())
    deploy = yaml.safe_load((FOLDER / "laptop.yaml").read_text())
    args = {one["name"]: one["args"] for one in deploy["applications"]}
    assert run["model"] == args["rollout_server"]["served_model_name"] == "clerk"
    assert run["environment"] == "external"
    assert args["trainer"]["model"] == args["rollout_server"]["model"]
    assert set(run) <= set(RunConfig.model_fields)
