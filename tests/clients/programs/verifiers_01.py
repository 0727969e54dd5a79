"""`verifiers` 0.1: an environment of two turns through each of its clients."""

import verifiers as vf
from checks import ASK, MODEL, many, run
from datasets import Dataset
from openai import AsyncOpenAI
from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient
from verifiers.clients.openai_chat_completions_token_client import (
    OpenAIChatCompletionsTokenClient,
)
from verifiers.clients.openai_responses_client import OpenAIResponsesClient


class TwoCustomers(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": "3 pen"}]


class TokenClient(OpenAIChatCompletionsTokenClient):
    """Sends messages where it cannot go on from tokens, and only logs it: here it must not."""

    turns = 0

    async def get_prompt_ids(self, *args, **more):
        found = await super().get_prompt_ids(*args, **more)
        assert found is not None, "it fell back to messages"
        TokenClient.turns += 1
        return found


def _said(completion, **_) -> float:
    return float(
        all(message["role"] != "assistant" or message["content"] for message in completion)
    )


async def _episode(kind=OpenAIChatCompletionsClient, **sampling) -> str:
    example = {"prompt": [{"role": "user", "content": ASK}], "example_id": 0, "answer": ""}
    environment = TwoCustomers(
        dataset=Dataset.from_list([example]), rubric=vf.Rubric(funcs=[_said]), max_turns=2
    )
    sampling = {"max_tokens": 100, **sampling}  # a turn that is cut is not gone on from
    client = kind(AsyncOpenAI(max_retries=0))
    done = await environment.run_rollout(example, client, MODEL, sampling)
    assert not done.get("error"), done["error"]
    return str(done["reward"])


async def answer():
    assert await _episode() == "1.0"


async def tokens():
    """Its token client goes on from the tokens of the first turn."""
    assert await _episode(TokenClient) == "1.0"
    assert TokenClient.turns == 1


async def responses():
    assert await _episode(OpenAIResponsesClient)


async def fifty():
    await many(_episode)


run(answer, tokens, fifty, responses)
