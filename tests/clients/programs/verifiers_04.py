"""`verifiers` 0.4: its train client, which sends and takes tokens, and its eval client."""

import os
import sys
from pathlib import Path

import httpx
import verifiers.v1 as vf
from checks import ASK, KEY, MODEL, ROOT, URL, many, run
from renderers.configs import DefaultRendererConfig
from verifiers.v1.clients import resolve_client
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.dialects import AnthropicDialect, ChatDialect, ResponsesDialect
from verifiers.v1.types import SamplingConfig

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": ASK}], "max_tokens": 16}
RESPONSES = {"model": MODEL, "input": ASK, "max_output_tokens": 16}
SAMPLING = SamplingConfig(temperature=1.0, max_tokens=16)
TRAIN = resolve_client(
    TrainClientConfig(
        base_url=ROOT,
        api_key_var="OPENAI_API_KEY",
        renderer=DefaultRendererConfig(),
        renderer_model_name=os.environ["MODEL_FOLDER"],
    )
)
EVAL = resolve_client(EvalClientConfig(base_url=URL, api_key_var="OPENAI_API_KEY"))


async def _sampled() -> str:
    answer = await TRAIN.get_response(ChatDialect(), CHAT, SAMPLING, session_id="one")
    assert answer.tokens.completion_ids
    assert len(answer.tokens.completion_ids) == len(answer.tokens.completion_logprobs)
    return str(answer.tokens.completion_ids)


async def tokens():
    await _sampled()


async def answer():
    said = await EVAL.get_response(ChatDialect(), CHAT, SAMPLING, session_id="two")
    assert said.message.content
    said = await EVAL.get_response(AnthropicDialect(), CHAT, SAMPLING, session_id="three")
    assert said.message.content


async def stream():
    reply = await EVAL.relay(ChatDialect(), {**CHAT, "stream": True}, session_id="four")
    text = b"".join([chunk async for chunk in reply.chunks])
    await reply.close()
    assert b"[DONE]" in text


async def responses():
    said = await EVAL.get_response(ResponsesDialect(), RESPONSES, SAMPLING, session_id="five")
    assert said.message.content


async def fifty():
    await many(_sampled)


class Purchase(vf.Task[vf.TaskData]):
    """Paid for any answer."""

    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        return float(bool(trace.last_reply))


async def session():
    """Its agent plays a session, as `examples/verifiers` has it."""
    sys.path.append(str(Path(__file__).parents[3] / "examples" / "verifiers"))
    import play

    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=ROOT, headers=headers) as router:
        offer = {"task": {}, "run": "clients", "model": MODEL, "max_tokens": 32}
        made = (await router.post("/v1/sessions", json={"offer": offer})).json()["id"]
        task = Purchase(vf.TaskData(prompt=ASK))
        trace = await play.Player({}, ROOT, {"id": "null"}).play_task(made, task)
        assert trace.ok, trace.errors
        assert trace.reward == 1.0
        seen = (await router.get(f"/v1/sessions/{made}")).json()
        assert sum(seen["calls"].values()) == 1, seen


run(answer, stream, fifty, tokens, responses, session)
