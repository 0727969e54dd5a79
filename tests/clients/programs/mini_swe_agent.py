"""`mini-swe-agent`: a whole episode of its agent, whose model is made to submit at once.

An untrained model must not choose what the shell runs.
"""

import asyncio
import json

from checks import ASK, MODEL, many, run
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_response_model import LitellmResponseModel

SUBMIT = {"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}
CALL = f"<tool_call>\n{json.dumps(SUBMIT)}\n</tool_call>"
FORCED = {"structured_outputs": {"choice": [CALL]}}


def _episode(kind: type, limit: str) -> str:
    model = kind(
        model_name=f"openai/{MODEL}",
        model_kwargs={limit: 400, "extra_body": FORCED},
        cost_tracking="ignore_errors",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(),
        system_template="You can interact with a computer.",
        instance_template="Solve this: {{task}}",
        step_limit=2,
    )
    return str(agent.run(ASK)["exit_status"])


async def tools():
    assert await asyncio.to_thread(_episode, LitellmModel, "max_tokens") == "Submitted"


async def responses():
    assert (
        await asyncio.to_thread(_episode, LitellmResponseModel, "max_output_tokens") == "Submitted"
    )


async def fifty():
    await many(lambda: asyncio.to_thread(_episode, LitellmModel, "max_tokens"))


run(tools, fifty, responses)
