"""What the guide shows of environments runs."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task

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


def test_the_line_for_verifiers_names_the_adapter() -> None:
    source = blocks("environments.md", "python")[1]
    with pytest.raises((InvalidInput, ModuleNotFoundError), match=r"verifiers|my_environment"):
        exec(source, {})
