"""An agent with tools, in a recorded session: what it did comes back token by token."""

import json

from services.protocol.router import SESSION_HEADER
from tests.conformance.saying import ASK, call, says
from tests.router.request_table import TOOLS
from tests.router.vllm_process import MODEL

TURNS = 3


async def test_the_trajectory_of_an_agent_is_what_was_sampled(parsing):
    sessions = f"{parsing.url}/v1/sessions"
    session = (await parsing.http.post(sessions, json={"metadata": {"task": "1"}})).json()["id"]
    messages, made = list(ASK), []
    for turn in range(TURNS):
        last = turn == TURNS - 1
        said = "<think>done</think>7" if last else f"<think>b</think>{call('add', a=1)}"
        answer = await parsing.client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=TOOLS,
            extra_headers={SESSION_HEADER: session},
            extra_body=says(said) | {"return_trajectory": True},
        )
        choice = answer.choices[0]
        made.append(choice.model_extra["trajectory"])
        messages.append(choice.message.model_dump(exclude_none=True))
        if last:
            assert choice.message.content == "7"
            break
        (asked,) = choice.message.tool_calls
        assert json.loads(asked.function.arguments) == {"a": 1}
        messages.append({"role": "tool", "tool_call_id": asked.id, "content": "2"})
    await parsing.http.post(f"{sessions}/{session}/finish", json={"reward": 1.0})
    recorded = (await parsing.http.get(f"{sessions}/{session}")).json()
    assert (recorded["state"], recorded["reward"]) == ("finished", 1.0)
    assert sum(recorded["calls"].values()) == TURNS

    _check_token_exact(recorded["trajectories"], made)


def _check_token_exact(trajectories, made):
    """Each answer is in one trajectory at the place of its prompt, with mask 1 and logprobs."""
    found = 0
    for answer in made:
        start = len(answer["prompt_token_ids"])
        sampled = answer["token_ids"]
        for one in trajectories:
            tokens = one["prompt_token_ids"] + one["response_token_ids"]
            if tokens[: start + len(sampled)] != answer["prompt_token_ids"] + sampled:
                continue
            at = start - len(one["prompt_token_ids"])
            mask = one["loss_mask"][at : at + len(sampled)]
            if all(mask):
                found += 1
                logprobs = one["behaviour_logprobs"][at : at + len(sampled)]
                assert logprobs == answer["logprobs"]
                break
    assert found == len(made)
    trained = sum(sum(one["loss_mask"]) for one in trajectories)
    assert trained == sum(len(answer["token_ids"]) for answer in made)
