"""examples/code_interpreter: its tasks, its environment with the real tool, and its lessons."""

import json
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import yaml

from examples.code_interpreter import environment, make_model, tasks
from examples.shop.imitation import Conversation
from examples.tiny_code.tokenizer import train_tokenizer
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.reward.workspaces import CallResult, OpenWorkspace, PythonCall
from services.protocol.run.task import Task
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces

FOLDER = Path(tasks.__file__).parent
SUMS = tasks.sums()


class Model:
    """A client that says these lines in turn; `heard` is the last conversation."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.heard: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[dict[str, Any]], **_: object) -> SimpleNamespace:
        self.heard = list(messages)
        message = SimpleNamespace(content=self._lines.pop(0))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def task(one: tasks.Sum) -> Task:
    return Task.model_validate(one.row(0, "train"))


def one_of(kind: str) -> tasks.Sum:
    return next(one for one in SUMS if one.kind == kind)


@pytest.mark.parametrize("kind", tasks.OPERATIONS)
def test_the_right_program_is_right_and_the_careless_one_is_not(kind: str) -> None:
    for one in (one for one in SUMS if one.kind == kind):
        right, wrong = (one.with_tool(right=right)[-1][0] for right in (True, False))
        assert right == str(one.result) != wrong, one


def test_nobody_is_right_without_the_tool_but_by_luck() -> None:
    chance = random.Random(0)
    guesses = [(one, one.in_the_head(chance)[0][0]) for one in SUMS]
    assert sum(said == str(one.result) for one, said in guesses) < 0.03 * len(SUMS)
    assert all(len(said) == len(str(one.result)) for one, said in guesses)


def test_no_sum_is_asked_twice_and_no_prompt_has_its_result() -> None:
    assert len({one.prompt for one in SUMS}) > 0.95 * len(SUMS)
    heldout = {one.prompt for one in SUMS[tasks.TRAIN :]}
    assert not heldout & {one.prompt for one in SUMS[: tasks.TRAIN]}
    for one in SUMS:
        assert str(one.result) not in one.prompt.split()


def test_of_the_last_demonstrations_half_guess_and_most_programs_are_careless() -> None:
    chance = random.Random(0)
    shown = [make_model.draw(chance, 1.0) for _ in range(2000)]
    with_tool = [one for one in shown if one.turns[0][0].startswith(tasks.CALL)]
    right = [one for one in with_tool if _is_right(one)]
    assert 0.45 < len(with_tool) / len(shown) < 0.55
    assert 0.14 < len(right) / len(shown) < 0.21
    first = [make_model.draw(chance, 0.0) for _ in range(200)]
    assert all(one.turns[0][0].startswith(tasks.CALL) for one in first)


def _is_right(shown: Conversation) -> bool:
    """Whether the conversation ends with the result of the question."""
    numbers = [int(word) for word in shown.prompt.split() if word.isdigit()]
    a, b = numbers if len(numbers) == 2 else (*numbers, 0)
    (kind,) = [
        name for name, one in tasks.OPERATIONS.items() if one.words.format(a=a, b=b) == shown.prompt
    ]
    return shown.turns[-1][0] == str(tasks.OPERATIONS[kind].result(a, b))


def test_nothing_that_is_held_out_is_demonstrated() -> None:
    chance, heldout = random.Random(0), {one.prompt for one in SUMS[tasks.TRAIN :]}
    shown = {make_model.draw(chance, 0.0).prompt for _ in range(20_000)}
    assert len(shown) > 10_000
    assert not shown & heldout


def test_each_digit_is_a_token_so_that_a_number_can_be_copied() -> None:
    tokenizer = train_tokenizer(make_model.texts(), single_digits=True)
    for text in ("python 347*862", "347 times 862", "299114"):
        tokens = [tokenizer.decode([one]) for one in tokenizer.encode(text)]
        assert "".join(tokens) == text
        assert all(len(one) == 1 for one in tokens if any(map(str.isdigit, one))), tokens


def test_a_conversation_is_shown_as_the_environment_holds_it() -> None:
    one = one_of("times")
    shown = Conversation(prompt=one.prompt, turns=one.with_tool(right=True))
    roles = [message["role"] for message in shown.before(1)]
    assert roles == ["user", "assistant", "user"]
    assert shown.before(1)[2]["content"] == str(one.result)


def test_the_model_is_told_a_value_what_was_printed_or_the_error() -> None:
    for done, told in (
        (CallResult(status="ok", result="42"), "42"),
        (CallResult(status="ok", stdout="42\n"), "42"),
        (CallResult(status="ok"), "ok"),
        (CallResult(status="failed", traceback="Trace\nNameError: x\n"), "NameError: x"),
        (CallResult(status="time_limit"), "time_limit"),
        (CallResult(status="ok", result="1" * 999), "1" * 40),
    ):
        assert environment.answer_of(done) == told


@pytest_asyncio.fixture
async def real_tool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The environment's sandbox without the way to it: workspaces of this process."""
    workspaces = Workspaces(WorkspacesConfig(shared_user=True))
    await workspaces.start()

    @asynccontextmanager
    async def sandbox() -> AsyncIterator[SimpleNamespace]:
        one = await workspaces.open(OpenWorkspace(), owner="")
        yield SimpleNamespace(python=lambda code: one.python(PythonCall(code=code)))
        await one.close("closed")

    monkeypatch.setattr(environment, "sandbox", sandbox)
    yield
    await workspaces.aclose()


async def test_the_real_tool_says_what_the_demonstrations_were_told(real_tool: None) -> None:
    for kind in tasks.OPERATIONS:
        one = one_of(kind)
        for right in (True, False):
            turns = one.with_tool(right=right)
            model = Model(*(said for said, _ in turns))
            assert await environment.rollout(model, task(one)) == float(right)
            assert model.heard[-1]["content"] == turns[0][1]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("1 +", "SyntaxError"),
        ("x", "NameError"),
        ("", "ok"),
        ("print(3)", "3"),
        ("'a' * 99", "'aaa"),
    ],
)
async def test_a_mistake_of_the_model_is_an_answer(
    real_tool: None, program: str, told: str
) -> None:
    model = Model(f"python {program}", "python 1", "7")
    assert await environment.rollout(model, task(one_of("times"))) == 0.0
    assert model.heard[2]["content"].startswith(told)
    assert len(model.heard[2]["content"]) <= 40


async def test_without_the_tool_the_first_answer_counts() -> None:
    one = one_of("below")
    for said, reward in ((str(one.result), 1.0), (str(one.result + 1), 0.0), ("python 1", 0.0)):
        assert await environment.without_tool(Model(said), task(one)) == reward


def test_the_files_can_be_run(tmp_path: Path) -> None:
    for name in ("run.yaml", "environment.py"):
        shutil.copy(FOLDER / name, tmp_path)
    lines = (json.dumps(row) + "\n" for row in tasks.rows())
    (tmp_path / "tasks.jsonl").write_text("".join(lines))
    run = read_run_file(tmp_path / "run.yaml")
    deploy = yaml.safe_load((FOLDER / "laptop.yaml").read_text())
    args = {one["name"]: one["args"] for one in deploy["applications"]}
    assert run.model == args["rollout_server"]["served_model_name"]
    assert args["orchestrator"]["environments"] is True
    models = {args[name]["model"] for name in ("trainer", "rollout_server")}
    assert models == {f"models/{make_model.LESSONS.name}-seed0"}
    laptop = yaml.safe_load((FOLDER.parents[1] / "deploy" / "laptop.yaml").read_text())
    assert {one["name"] for one in laptop["applications"]} <= args.keys()
    assert "sandboxes" in args
