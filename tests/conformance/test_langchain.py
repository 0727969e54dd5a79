"""`langchain-openai` against a router over a real engine."""

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict

from tests.conformance.saying import call, says
from tests.router.vllm_process import MODEL

QUESTION = "larger of a and 7"


class Verdict(BaseModel):
    """What the model is asked to answer."""

    model_config = ConfigDict(extra="forbid")
    right: bool


@tool
def add(a: int) -> int:
    """Add one."""
    return a + 1


def _chat(cluster, **options):
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{cluster.url}/v1",
        api_key="none",
        temperature=0,
        max_retries=0,
        **{"max_tokens": 12} | options,
    )


async def test_invoked_streamed_and_batched_answers_are_the_same(router):
    chat = _chat(router, stream_usage=True)
    whole = await chat.ainvoke(QUESTION)
    parts = [part async for part in chat.astream(QUESTION)]
    assert "".join(part.content for part in parts) == whole.content
    assert whole.response_metadata["finish_reason"] == "length"
    told = [part.usage_metadata for part in parts if part.usage_metadata]
    assert [usage["output_tokens"] for usage in told] == [12]
    batch = await chat.abatch([QUESTION] * 3)
    assert [one.content for one in batch] == [whole.content] * 3


async def test_structured_output_is_parsed(router):
    chat = _chat(router, max_tokens=60).with_structured_output(Verdict, method="json_schema")
    assert isinstance(await chat.ainvoke(QUESTION), Verdict)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_tool_is_called_and_its_result_goes_back(parsing, stream):
    chat = _chat(parsing, max_tokens=200, extra_body=says(f"<think>a</think>{call('add', a=7)}"))
    offered = chat.bind_tools([add])
    history = [HumanMessage(QUESTION)]
    if stream:
        first, *rest = [part async for part in offered.astream(history)]
        said = sum(rest, start=first)
    else:
        said = await offered.ainvoke(history)
    (asked,) = said.tool_calls
    assert (asked["name"], asked["args"]) == ("add", {"a": 7})
    result = ToolMessage(str(add.invoke(asked["args"])), tool_call_id=asked["id"])
    answer = await _chat(parsing).ainvoke([*history, said, result])
    assert answer.response_metadata["finish_reason"] == "length"
