"""Tasksets of verifiers from 0.3 on, whose agents are programs that verifiers starts."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from environments import verifiers_tasksets
from environments.verifiers import load, task_rows, verifiers_rollout
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from tests.adapters.test_verifiers import Policy, policy_of

TASKSET = """
import verifiers.v1 as vf


class SquareData(vf.TaskData):
    answer: str


class Square(vf.Task[SquareData]):
    # tools of each task
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if self.data.answer == "16":
            raise ValueError("the grader is away")
        return float(self.data.answer in (trace.last_reply or ""))


class SquaresConfig(vf.TasksetConfig):
    largest: int = 3


class Squares(vf.Taskset[Square, SquaresConfig]):
    # tools of the taskset
    def load(self):
        for n in range(2, self.config.largest + 1):
            yield Square(SquareData(prompt=f"{n} times {n}?", answer=str(n * n)))


__all__ = ["Squares"]
"""

TOOLS_OF = {"each task": "ToolsetConfig", "the taskset": "SharedToolsetConfig"}
DECLARED = """
    @classmethod
    def toolsets(cls, config):
        return [Maths(vf.{config}())]

"""
TOOLS = """
import os
import verifiers.v1 as vf


class Maths(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "maths"

    @vf.tool
    def times(self, a: int, b: int) -> str:
        \"\"\"Multiply.\"\"\"
        process = "".join("abcdefghij"[int(one)] for one in str(os.getpid()))
        return f"{a * b} by {process}"


if __name__ == "__main__":
    Maths.run()
"""


@pytest.fixture
def squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a taskset that can be imported, and returns its name."""
    pytest.importorskip("verifiers")
    if find_spec("verifiers.v1") is None or find_spec("verifiers.v1.agent") is None:
        pytest.skip("needs verifiers 0.3 or later")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "")  # which the adapter may change

    def write(name: str = "millrace-taskset", of: str = "", tools: str = TOOLS) -> str:
        module, text = name.replace("-", "_"), TASKSET
        if of:
            (tmp_path / f"{module}_tools.py").write_text(tools)
            declared = DECLARED.format(config=TOOLS_OF[of])
            text = text.replace(f"    # tools of {of}\n", declared)
            text = f"from {module}_tools import Maths\n{text}"
        (tmp_path / f"{module}.py").write_text(text)
        return name

    return write


async def played(name: str, policy: Policy, **arguments: Any) -> list[float]:
    tasks = [Task.model_validate(row) for row in task_rows(load(name, **arguments))]
    async with policy_of(policy) as client:
        rollout = verifiers_rollout(name, **arguments)
        return [await rollout(client, task) for task in tasks]


def test_tasks_of_a_taskset_have_a_split_of_their_own(squares: Any) -> None:
    rows = list(task_rows(load(squares(), largest=21)))
    assert [row["split"] for row in rows].count("heldout") == 2
    assert sorted(row["data"]["info"]["place"] for row in rows) == list(range(20))
    said = {row["messages"][0]["content"] for row in rows}
    assert said == {f"{n} times {n}?" for n in range(2, 22)}


async def test_an_episode_of_a_taskset_gets_its_reward_and_the_runs_sampling(squares: Any) -> None:
    policy = Policy()
    rewards = await played(squares(), policy)
    assert sorted(rewards) == [0.0, 1.0]
    assert {(body["temperature"], body["max_tokens"]) for body in policy.asked} == {(0.7, 9)}
    assert set(policy.sessions) == {"sess_1"}
    assert {body["model"] for body in policy.asked} == {"tiny"}


@pytest.mark.parametrize("of", TOOLS_OF)
async def test_an_agent_uses_the_tools_of_a_taskset_that_is_not_installed(
    squares: Any, of: str
) -> None:
    policy = Policy()
    rewards = await played(squares(f"millrace-tools-of-{of.split()[-1]}", of), policy)
    assert sorted(rewards) == [0.0, 1.0]
    told = {one["function"]["name"] for body in policy.asked for one in body["tools"]}
    assert told == {"maths_times"}
    last = [body["messages"][-1] for body in policy.asked]
    heard = [one["content"] for one in last if one["role"] == "tool"]
    assert all(one.startswith("9 by ") for one in heard)
    assert len(heard) == 2
    assert len(set(heard)) == (2 if of == "each task" else 1), "processes that answered"


def test_tools_that_verifiers_cannot_start_are_refused_before_any_episode(squares: Any) -> None:
    """It would wait for minutes for a program that has ended."""
    name = squares("millrace-no-main", "each task", TOOLS.partition("if __name__")[0])
    with pytest.raises(InvalidInput, match=r"millrace_no_main_tools.*Maths\.run\(\)"):
        verifiers_rollout(name)


async def test_an_episode_that_does_not_begin_ends_with_its_reason(
    squares: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers_tasksets, "BEGINS_S", 0.1)  # no program starts so fast
    with pytest.raises(RuntimeError, match="no call within"):
        await played(squares("millrace-late", "each task"), Policy())


async def test_an_error_inside_a_taskset_is_no_reward(squares: Any) -> None:
    with pytest.raises(RuntimeError, match="the grader is away"):
        await played(squares("millrace-broken"), Policy(), largest=4)


async def test_a_server_that_refuses_is_no_reward(squares: Any) -> None:
    class Refusing(Policy):
        async def answer(self, request: Any) -> Any:
            return web.json_response({"error": {"message": "no"}}, status=400)

    with pytest.raises(RuntimeError):
        await played(squares("millrace-refused"), Refusing())
