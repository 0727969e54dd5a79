"""examples/arithmetic: its tasks, its run file, and both of its environments."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.arithmetic import environment, make_tasks
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.task import Task

FOLDER = Path(environment.__file__).parent


def task(problem: str) -> Task:
    return Task.model_validate(next(t for t in make_tasks.tasks() if problem in t["task_id"]))


def reply(text: str = "", *calls: tuple[str, str]) -> SimpleNamespace:
    tool_calls = [
        SimpleNamespace(id=f"c{i}", function=SimpleNamespace(name=name, arguments=arguments))
        for i, (name, arguments) in enumerate(calls)
    ]
    message = SimpleNamespace(content=text, tool_calls=tool_calls, model_dump=lambda **_: {"m": 1})
    return SimpleNamespace(choices=[SimpleNamespace(message=message)])


class Scripted:
    """A client that gives these replies; `asked` are the messages that it got."""

    def __init__(self, *replies: SimpleNamespace) -> None:
        self._replies = list(replies)
        self.asked: list[list[dict]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[dict], **_: object) -> SimpleNamespace:
        self.asked.append(list(messages))
        return self._replies.pop(0)


def test_the_run_file_can_be_used_once_the_tasks_are_written(tmp_path: Path) -> None:
    for name in ("run.yaml", "environment.py"):
        shutil.copy(FOLDER / name, tmp_path)
    lines = [json.dumps(task) + "\n" for task in make_tasks.tasks()]
    (tmp_path / "tasks.jsonl").write_text("".join(lines))
    run = read_run_file(tmp_path / "run.yaml")
    assert run.environment == f"{tmp_path / 'environment.py'}:answer"
    assert len(lines) == make_tasks.TRAIN + make_tasks.HELDOUT


@pytest.mark.parametrize(
    ("said", "off", "reward"),
    [("It is {}.", 0, 1.0), ("It is {}.", 1, 0.0), ("2 + 2, so {}", 0, 1.0), ("none", 0, 0.0)],
)
async def test_an_answer_is_graded_by_its_last_number(said: str, off: int, reward: float) -> None:
    asked = task(" - ")
    client = Scripted(reply(said.format(asked.data["answer"] + off)))
    assert await environment.answer(client, asked) == reward


async def test_an_agent_gets_what_its_tools_say_and_its_mistakes_back() -> None:
    asked = task(" * ")
    left, right = asked.task_id.split(" * ")
    numbers = json.dumps({"a": left, "b": right})
    client = Scripted(
        reply("", ("multiply", numbers), ("divide", "{}"), ("add", "not JSON")),
        reply(f"That makes {int(left) * int(right)}."),
    )
    assert await environment.agent(client, asked) == 1.0
    told = [message["content"] for message in client.asked[1][-3:]]
    assert told[0] == str(int(left) * int(right))
    assert [text.startswith("error: ") for text in told] == [False, True, True]
    assert await environment.agent(Scripted(*[reply("", ("add", "{}"))] * 6), asked) == 0.0
