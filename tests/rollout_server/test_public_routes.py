"""What the public port of a rollout server does not answer, and how control reaches it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import vllm

from services.protocol.weights.replica_control import ControlAction, ControlReplica, Hold
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.control.replica_control import EngineControl

from .conftest import Sender
from .http_served import MODEL, HttpServed

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTROL_SOURCES = ("entrypoints/serve/dev", "entrypoints/rl", "entrypoints/serve/elastic_ep")
KNOWN = (
    "/abort_requests",
    "/collective_rpc",
    "/inference/v1/abort_requests",
    "/init_weight_transfer_engine",
    "/is_sleeping",
    "/pause",
    "/release_kv_cache_memory",
    "/reset_prefix_cache",
    "/resume",
    "/scale_elastic_ep",
    "/server_info",
    "/sleep",
    "/start_profile",
    "/update_weights",
    "/v1/load_lora_adapter",
    "/wake_up",
    "/weight_info",
)


def control_paths() -> set[str]:
    """Every path in vLLM's sources of development, RL and scaling endpoints."""
    root = Path(vllm.__file__).parent
    found = set(KNOWN)
    for folder in CONTROL_SOURCES:
        for file in (root / folder).rglob("*.py"):
            found |= set(re.findall(r"router\.(?:get|post)\(\s*\"(/[\w/]+)\"", file.read_text()))
    return found


async def test_no_control_of_vllm_is_on_the_public_port(app: HttpServed) -> None:
    paths = control_paths()
    assert len(paths) > len(KNOWN), "vLLM keeps its endpoints elsewhere now"
    for path in sorted(paths):
        for method in ("GET", "POST"):
            async with app.http.request(method, app.url + path, json={}) as answer:
                assert answer.status == 404, f"{method} {path} answers {answer.status}"


async def test_the_public_interface_is_all_there(app: HttpServed) -> None:
    async with app.http.get(f"{app.url}/openapi.json") as answer:
        paths = set((await answer.json())["paths"])
    wanted = {
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/chat/completions/render",
        "/v1/completions/derender",
        "/inference/v1/generate",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/health",
    }
    assert wanted <= paths


class Operator:
    """Orders to the engine, as the replica's membership of the bus carries them out."""

    def __init__(self, app: HttpServed) -> None:
        config = RolloutServerConfig(model="m")
        self.control = EngineControl(app.served.engine, app.served.loader, config)
        self._number = 0

    async def do(self, action: ControlAction, level: int | None = None) -> Any:
        self._number += 1
        order = ControlReplica(control_id=str(self._number), action=action, level=level)
        return await self.control.carry_out(order, "r")


def ask(app: HttpServed, tokens: int) -> "asyncio.Task[Any]":
    return asyncio.create_task(
        app.client.completions.create(
            model=MODEL, prompt="abc", max_tokens=tokens, extra_body={"ignore_eos": True}
        )
    )


async def test_an_operator_ends_requests_and_the_engine_goes_on(app: HttpServed) -> None:
    operator, asked = Operator(app), ask(app, 900)
    await app.until_open_requests(1)
    assert (await operator.do(ControlAction.ABORT)).error is None
    assert (await asked).choices[0].finish_reason == "abort"
    assert (await ask(app, 4)).usage.completion_tokens == 4


async def test_an_operator_ends_every_answer_of_a_request_for_several(app: HttpServed) -> None:
    several = asyncio.create_task(
        app.client.completions.create(
            model=MODEL, prompt="abc", n=3, max_tokens=900, extra_body={"ignore_eos": True}
        )
    )
    await app.until_open_requests(3)
    assert (await Operator(app).do(ControlAction.ABORT)).error is None
    answer = await asyncio.wait_for(several, 300)
    assert [choice.finish_reason for choice in answer.choices] == ["abort"] * 3


async def test_a_paused_engine_takes_new_weights_and_answers_only_when_it_is_resumed(
    app: HttpServed, sender: Sender
) -> None:
    operator, running = Operator(app), ask(app, 900)
    await app.until_open_requests(1)
    assert (await operator.do(ControlAction.PAUSE)).held is Hold.PAUSED
    assert (await running).choices[0].finish_reason == "abort"
    waiting = ask(app, 4)
    await app.until_open_requests(1)
    await app.served.push(sender, seed=2)
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done, "a commit resumed what an operator had paused"
    assert (await operator.do(ControlAction.RESUME)).held is Hold.NONE
    assert (await waiting).choices[0].finish_reason == "length"
    assert (await operator.do(ControlAction.RESET_PREFIX_CACHE)).error is None


async def test_an_engine_on_cpu_sleeps_with_its_weights_and_answers_when_it_wakes_up(
    app: HttpServed,
) -> None:
    operator = Operator(app)
    assert (await operator.do(ControlAction.SLEEP, 1)).held is Hold.ASLEEP
    assert (await operator.do(ControlAction.WAKE_UP)).held is Hold.NONE
    assert (await ask(app, 4)).usage.completion_tokens == 4
