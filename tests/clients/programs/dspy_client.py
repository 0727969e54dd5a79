"""`dspy`: its programs over chat and over Responses."""

import dspy
from checks import ASK, MODEL, many, run

CHAT = dspy.LM(f"openai/{MODEL}", max_tokens=16, cache=False, num_retries=0)


async def answer():
    assert (await CHAT.acall(ASK))[0]


async def responses():
    lm = dspy.LM(
        f"openai/{MODEL}", model_type="responses", max_tokens=16, cache=False, num_retries=0
    )
    assert await lm.acall(ASK)


async def fifty():
    async def one() -> str:
        return str((await CHAT.acall(ASK))[0])

    await many(one)


run(answer, fifty, responses)
