"""OpenAI's Agents SDK, unchanged, whose models speak the Responses API."""

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from tests.conformance.saying import call, says
from tests.router.vllm_process import MODEL

set_tracing_disabled(disabled=True)


@function_tool(strict_mode=False)  # with strict ones a grammar of calls holds for all answers
def add(a: int) -> int:
    """One more.

    Args:
        a: a number.
    """
    return a + 1


def _agent(cluster, said, **more):
    settings = ModelSettings(extra_body=says(said), max_tokens=300, **more)
    model = OpenAIResponsesModel(MODEL, cluster.client)
    return Agent(name="a", model=model, model_settings=settings, tools=[add],
                 tool_use_behavior="stop_on_first_tool")  # fmt: skip


async def test_an_agent_answers(parsing):
    result = await Runner.run(_agent(parsing, "<think>hm</think>seven"), "larger of a and 7")
    assert result.final_output == "seven"
    (answer,) = result.raw_responses
    assert answer.usage.output_tokens > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_agent_calls_a_tool(parsing, stream):
    agent = _agent(parsing, f"<think>hm</think>{call('add', a=1)}")
    if stream:
        result = Runner.run_streamed(agent, "one more than 1")
        kinds = {event.type async for event in result.stream_events()}
        assert kinds >= {"raw_response_event", "run_item_stream_event"}
    else:
        result = await Runner.run(agent, "one more than 1")
    assert str(result.final_output) == "2"
    assert [item.type for item in result.new_items] == [
        "reasoning_item",
        "tool_call_item",
        "tool_call_output_item",
    ]


async def test_an_agent_goes_on_from_an_earlier_response(parsing):
    first = await Runner.run(_agent(parsing, "<think>hm</think>seven"), "larger of a and 7")
    earlier = first.last_response_id
    second = await Runner.run(
        _agent(parsing, "<think>hm</think>eight"), "and of 8", previous_response_id=earlier
    )
    assert second.final_output == "eight"
    used = [result.raw_responses[0].usage.input_tokens for result in (first, second)]
    assert used[1] > used[0] + 10, "the second prompt has the first conversation"
