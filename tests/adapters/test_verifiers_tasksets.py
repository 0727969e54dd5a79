"""Tasksets of verifiers from 0.3 on, whose agents are programs that verifiers starts."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from environments.verifiers import load, task_rows, verifiers_rollout
from services.protocol.run.task import Task
from tests.adapters.test_verifiers import Policy, policy_of

TASKSET = """
import verifiers.v1 as vf


class SquareData(vf.TaskData):
    answer: str


class Square(vf.Task[SquareData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if self.data.answer == "16":
            raise ValueError("the grader is away")
        return float(self.data.answer in (trace.last_reply or ""))


class SquaresConfig(vf.TasksetConfig):
    largest: int = 3


class Squares(vf.Taskset[Square, SquaresConfig]):
    def load(self):
        for n in range(2, self.config.largest + 1):
            yield Square(SquareData(prompt=f"{n} times {n}?", answer=str(n * n)))


__all__ = ["Squares"]
"""


@pytest.fixture
def squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a taskset that can be imported, and returns its name."""
    pytest.importorskip("verifiers")
    if find_spec("verifiers.v1") is None or find_spec("verifiers.v1.agent") is None:
        pytest.skip("needs verifiers 0.3 or later")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str = "millrace-taskset") -> str:
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(TASKSET)
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


async def test_an_error_inside_a_taskset_is_no_reward(squares: Any) -> None:
    with pytest.raises(RuntimeError, match="the grader is away"):
        await played(squares("millrace-broken"), Policy(), largest=4)


async def test_a_server_that_refuses_is_no_reward(squares: Any) -> None:
    class Refusing(Policy):
        async def answer(self, request: Any) -> Any:
            return web.json_response({"error": {"message": "no"}}, status=400)

    with pytest.raises(RuntimeError):
        await played(squares("millrace-refused"), Refusing())
