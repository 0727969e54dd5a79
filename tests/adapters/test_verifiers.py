"""Real environments of `verifiers`, played through the client that an environment gets.

They run where a version before 0.4 is installed: the package asks for other versions of others
than the rest of Millrace, so it is no dependency of the tests. See `versions`.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from environments.verifiers import load, main, task_rows, verifiers_rollout
from services.orchestrator.rollout.policy_client import PolicyCalls, connections, policy_client
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task

ENVIRONMENT = '''
import verifiers as vf
from datasets import Dataset


def times(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: one number.
        b: the other.
    """
    return a * b


def counted(a: int, b: int, uses: int) -> str:
    """Multiply.

    Args:
        a: one number.
        b: the other.
        uses: which the model never sees.
    """
    return f"{a * b} by use {uses}"


class Doubted(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": "Are you sure?"}]


class Stateful(vf.StatefulToolEnv):
    def __init__(self, **given):
        super().__init__(**given)
        self.add_tool(counted, args_to_skip=["uses"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **_):
        state["uses"] = state.get("uses", 0) + 1
        return tool_args | {"uses": state["uses"]}


def right(completion, answer) -> float:
    return float(answer in str(completion[-1].content))


KINDS = {
    "tools": lambda given: vf.ToolEnv(tools=[times], max_turns=4, **given),
    "stateful": lambda given: Stateful(max_turns=4, **given),
    "multi turn": lambda given: Doubted(max_turns=2, **given),
    "single turn": lambda given: vf.SingleTurnEnv(**given),
}


def load_environment(largest: int = 3, evaluated: bool = True, kind: str = "tools"):
    rows = [{"question": f"{n} times {n}?", "answer": str(n * n)} for n in range(2, largest + 1)]
    given = {
        "dataset": Dataset.from_list(rows),
        "eval_dataset": Dataset.from_list(rows[:1]) if evaluated else None,
        "rubric": vf.Rubric(funcs=[right]),
    }
    return KINDS[kind](given)
'''


def test_without_verifiers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(InvalidInput, match="pip install 'millrace"):
        load("anything")


def test_the_command_names_what_it_lacks_and_leaves_the_task_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tasks.jsonl"
    out.write_text("of before")
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.setattr(sys, "argv", ["verifiers", "anything", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'millrace" in line
    assert out.read_text() == "of before"


@pytest.fixture
def squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an environment that can be imported."""
    pytest.importorskip("verifiers")
    if find_spec("verifiers.envs") is None:
        pytest.skip("needs verifiers before 0.4")
    (tmp_path / "millrace_squares.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "millrace-squares"


class WithoutEvaluationSet:
    """Answers as verifiers does: with the training set, and another one only if it is built."""

    def __init__(self, count: int, *, built: bool = False) -> None:
        self.eval_dataset: list[dict[str, Any]] | None = None
        self._examples = [
            {"prompt": [{"role": "user", "content": f"{n}?"}], "answer": str(n)}
            for n in range(count)
        ]
        self._built = built

    def get_dataset(self) -> list[dict[str, Any]]:
        return self._examples

    def get_eval_dataset(self) -> list[dict[str, Any]]:
        if self._built:
            self.eval_dataset = [{"prompt": [{"role": "user", "content": "new?"}]}]
        return self.get_dataset() if self.eval_dataset is None else self.eval_dataset


@pytest.mark.parametrize(("count", "heldout"), [(2, 1), (25, 2)])
def test_without_an_evaluation_set_a_tenth_is_held_out_and_never_trained(
    count: int, heldout: int
) -> None:
    rows = list(task_rows(WithoutEvaluationSet(count)))
    said = {
        split: {row["data"]["answer"] for row in rows if row["split"] == split}
        for split in ("train", "heldout")
    }
    assert (len(said["train"]), len(said["heldout"])) == (count - heldout, heldout)
    assert not said["train"] & said["heldout"]
    assert len({row["task_id"] for row in rows}) == count
    assert rows == list(task_rows(WithoutEvaluationSet(count)))


def test_an_evaluation_set_that_is_built_when_asked_is_the_held_out_one() -> None:
    rows = list(task_rows(WithoutEvaluationSet(3, built=True)))
    assert [row["split"] for row in rows] == ["train", "train", "train", "heldout"]


def test_one_example_without_an_evaluation_set_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no evaluation set"):
        task_rows(WithoutEvaluationSet(1))


class Policy:
    """Calls the tool, then says what it heard, or 9 without one; `asked` are the requests."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.sessions: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.sessions.append(request.headers["x-session-id"])
        last = body["messages"][-1]
        heard = last["content"] if last["role"] == "tool" else "9"
        message: dict[str, Any] = {"role": "assistant", "content": f"It is {heard}."}
        if last["role"] == "user" and body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            call = {"name": name, "arguments": json.dumps({"a": 3, "b": 3})}
            tool = {"id": "c1", "type": "function", "function": call}
            message = {"role": "assistant", "content": None, "tool_calls": [tool]}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy"}
        if not body.get("stream"):
            return web.json_response(head | {"choices": [choice], "usage": usage})
        for number, one in enumerate(message.get("tool_calls") or ()):
            one["index"] = number
        choice["delta"] = choice.pop("message")
        chunk = head | {"object": "chat.completion.chunk", "choices": [choice]}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return response


def test_examples_of_a_real_environment_without_an_evaluation_set_have_one_split(
    squares: str,
) -> None:
    rows = list(task_rows(load(squares, largest=11, evaluated=False)))
    assert sorted(row["data"]["answer"] for row in rows) == sorted(
        str(number * number) for number in range(2, 12)
    )
    assert [row["split"] for row in rows] == ["train"] * 9 + ["heldout"]


@asynccontextmanager
async def policy_of(policy: Policy) -> AsyncIterator[Any]:
    """The client that an environment gets, of a server with these answers."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", policy.answer)
    async with TestServer(app) as server:
        calls = PolicyCalls(
            url=f"http://127.0.0.1:{server.port}",
            session={"x-session-id": "sess_1"},
            api_key="none",
            fixed={"temperature": 0.7, "model": "tiny"},
            max_tokens=9,
            seed=1,
            timeout_s=300.0,
        )
        yield policy_client(connections(), calls)


@pytest.mark.parametrize(
    ("kind", "calls", "tool"),
    [
        ("tools", 2, "times"),
        ("stateful", 2, "counted"),
        ("multi turn", 2, None),
        ("single turn", 1, None),
    ],
)
async def test_an_episode_of_a_verifiers_environment_gets_its_rubrics_reward(
    squares: str, kind: str, calls: int, tool: str | None
) -> None:
    rows = list(task_rows(load(squares, largest=3, kind=kind)))
    assert [row["split"] for row in rows] == ["train", "train", "heldout"]
    tasks = [Task.model_validate(row) for row in rows]
    policy = Policy()
    async with policy_of(policy) as client:
        rollout = verifiers_rollout(squares, largest=3, kind=kind)
        assert [await rollout(client, task) for task in tasks] == [0.0, 1.0, 0.0]
    assert len(policy.asked) == 3 * calls
    assert {(body["temperature"], body["max_tokens"]) for body in policy.asked} == {(0.7, 9)}
    assert set(policy.sessions) == {"sess_1"}
    told = {one["function"]["name"] for body in policy.asked for one in body.get("tools") or ()}
    assert told == ({tool} if tool else set())
    if kind == "stateful":
        (shown,) = {json.dumps(body["tools"][0]["function"]["parameters"]) for body in policy.asked}
        assert "uses" not in json.loads(shown)["properties"]
        said = [body["messages"][-1]["content"] for body in policy.asked]
        assert said.count("9 by use 1") == 3, "each episode has a state of its own"
