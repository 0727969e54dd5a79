"""What the guide shows of environments runs."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from services.orchestrator.rollout.sandbox import sandboxes_at
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from tests.workspaces.fake_sandboxes import fake_sandboxes

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Talker:
    """Answers the same to everything; `turns` counts."""

    def __init__(self, said: str) -> None:
        self._said = said
        self.turns = 0
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **_: object) -> SimpleNamespace:
        self.turns += 1
        message = SimpleNamespace(content=self._said)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


@pytest.mark.parametrize(("said", "reward", "turns"), [("done: 42", 1.0, 1), ("41", 0.0, 4)])
async def test_the_rollout_of_the_guide_plays(said: str, reward: float, turns: int) -> None:
    scope: dict[str, Any] = {}
    exec(blocks("environments.md", "python")[0], scope)
    row = {"task_id": "t", "split": "train", "messages": [{"role": "user", "content": "?"}]}
    talker = Talker(said)
    task = Task.model_validate(row | {"data": {"answer": "42"}})
    assert await scope["rollout"](talker, task) == reward
    assert talker.turns == turns


async def test_the_ten_lines_of_the_guide_are_a_code_interpreter() -> None:
    scope: dict[str, Any] = {}
    exec(blocks("environments.md", "python")[1], scope)
    row = {"task_id": "t", "split": "train", "messages": [{"role": "user", "content": "6 * 7?"}]}
    coder = Coder('{"code": "print(6 * 7)"}')
    async with fake_sandboxes() as fake, httpx.AsyncClient(trust_env=False) as http:
        with sandboxes_at(http, fake.url, timeout_s=60):
            said = await scope["rollout"](coder, Task.model_validate(row))
    assert said == "It is 42"
    assert not fake.open


class Coder:
    """Calls the Python tool once, and then says what it was told."""

    def __init__(self, arguments: str) -> None:
        self._arguments = arguments
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[Any], tools: list[Any], **_: object) -> Any:
        assert [tool["function"]["name"] for tool in tools] == ["python", "bash", "read", "write"]
        told = messages[-1]
        calls = None
        if told["role"] == "user":
            function = SimpleNamespace(name="python", arguments=self._arguments)
            calls = [SimpleNamespace(id="1", function=function)]
        message = SimpleNamespace(
            content=None if calls else f"It is {told['content']}",
            tool_calls=calls,
            model_dump=lambda **_: {"role": "assistant"},
        )
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def test_the_line_for_verifiers_names_the_adapter() -> None:
    (source,) = [one for one in blocks("environments.md", "python") if "verifiers" in one]
    with pytest.raises((InvalidInput, ModuleNotFoundError), match=r"verifiers|my_environment"):
        exec(source, {})
