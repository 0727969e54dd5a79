"""The programs of docs/agents.md, run as they stand there."""

import asyncio
import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.conformance.conftest import before, until_idle
from tests.router.vllm_process import ALIAS

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
PROGRAMS = dict(
    re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
)


@pytest.fixture
async def run(vllm, monkeypatch):
    cluster = await before(vllm.tools, model=ALIAS)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{cluster.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "unused")

    def program(name):
        printed, names = io.StringIO(), {}
        with contextlib.redirect_stdout(printed):
            exec(compile(PROGRAMS[name], f"{PAGE.name}: {name}", "exec"), names)
        return printed.getvalue(), names

    yield lambda name: asyncio.to_thread(program, name)
    await until_idle(cluster)
    await cluster.close()


def test_the_page_has_three_programs():
    assert list(PROGRAMS) == [
        "OpenAI's client",
        "LangChain",
        "A loop of your own, with tools and a reward",
    ]


async def test_openais_client_answers_twice(run):
    _, names = await run("OpenAI's client")
    assert [message["role"] for message in names["messages"][::2]] == ["user", "user"]
    assert 1 <= names["answer"].usage.completion_tokens <= 32
    assert names["event"].choices[0].finish_reason in ("length", "stop")  # whichever is sampled


async def test_langchain_answers_with_a_tool_at_hand(run):
    _, names = await run("LangChain")
    assert names["answer"].response_metadata["finish_reason"]
    assert names["part"].response_metadata or names["part"].chunk_position == "last"


async def test_the_loop_ends_with_a_trajectory_per_reward(run):
    printed, names = await run("A loop of your own, with tools and a reward")
    assert names["done"]["state"] == "finished"
    assert names["done"]["reward"] == float(names["right"])
    assert [message["role"] for message in names["messages"]][:3] == ["user", "assistant", "tool"]
    assert "tokens to learn from" in printed
