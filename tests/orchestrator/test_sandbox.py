"""Environments with a sandbox: in a process of their own, against an API that is real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.rollout import environment_process
from services.orchestrator.rollout.environment_process import EnvironmentProcess
from services.orchestrator.rollout.episodes import EpisodeSampler
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import RolloutFailed, RolloutRequest
from services.orchestrator.rollout.sandbox import sandbox
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task
from tests.orchestrator.fakes import world
from tests.workspaces.fake_sandboxes import FakeSandboxes

pytestmark = pytest.mark.usefixtures("no_drawing")

CODER = f"{Path(__file__).parent / 'coder.py'}:rollout"


def request(how: str, *, timeout_s: float = 300.0) -> RolloutRequest:
    row = {
        "task_id": how,
        "messages": [{"role": "user", "content": how}],
        "split": "train",
        "data": {"how": how},
    }
    return RolloutRequest(
        session=f"run-{how}",
        messages=[],
        n=2,
        temperature=0.7,
        max_tokens=9,
        seed=5,
        limits=RolloutLimits(total_s=timeout_s, progress_s=600.0),
        task=Task.model_validate(row),
    )


@asynccontextmanager
async def coding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FakeSandboxes, EpisodeSampler]]:
    monkeypatch.setenv("ROUTER_KEY", "sesame-sesame-sesame")
    fake = FakeSandboxes()
    async with world(tmp_path, router_key_env="ROUTER_KEY", more_routes=fake.add_to) as cluster:
        cluster.bus.publish_version(1)
        rollouts = EpisodeSampler(
            cluster.config, player=EnvironmentProcess(CODER), model="tiny", run_id="r"
        )
        async with rollouts:
            yield fake, rollouts


async def rewards(rollouts: EpisodeSampler, how: str) -> list[float | None]:
    arrived: list[tuple[Any, ...]] = []
    await rollouts.sample(request(how), lambda *one: arrived.append(one))
    return [score.reward for *_, score in arrived]


async def test_the_tools_of_an_environment_need_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coding(tmp_path, monkeypatch) as (fake, rollouts):
        assert await rewards(rollouts, "uses") == [1.0, 1.0]
        assert await rewards(rollouts, "answers") == [1.0, 1.0]
        assert await rewards(rollouts, "graded") == [1.0, 1.0]
        assert not fake.open, "every episode closes its workspace"
        assert {key for *_, key, _ in fake.asked} == {"Bearer sesame-sesame-sesame"}
        opening = next(
            sent for method, path, _, sent in fake.asked if (method, path) == ("POST", "")
        )
        assert opening["files"] == {"a.txt": "one"}
        assert 300 < opening["total_s"] < 400, "one that is left over ends soon after its episode"


async def test_nothing_that_a_model_says_can_cost_its_episode_the_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coding(tmp_path, monkeypatch) as (fake, rollouts):
        assert await rewards(rollouts, "hostile") == [1.0, 1.0]
        gone = (410, {"message": "gone", "reason": "memory"})
        fake.fail = {"python": gone, "grade": gone}
        assert await rewards(rollouts, "full") == [1.0, 1.0], "and a grade of 0"


@pytest.mark.parametrize(
    ("what", "failure", "reason"),
    [
        ("", (400, {"param": "network.0", "value": "x", "fix": "No."}), "workspace_refused"),
        ("python", (410, {"message": "gone", "reason": "lost"}), "workspace_lost"),
        ("python", (410, {"message": "gone", "reason": "idle"}), "workspace_lost"),
    ],
)
async def test_what_fails_around_the_model_is_a_reason_and_never_a_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, failure: Any, reason: str
) -> None:
    async with coding(tmp_path, monkeypatch) as (fake, rollouts):
        fake.fail = {what: failure}
        arrived: list[tuple[Any, ...]] = []
        with pytest.raises(RolloutFailed) as caught:
            await rollouts.sample(request("fails"), lambda *one: arrived.append(one))
        assert caught.value.reason == reason
        assert all(score.reward is None for *_, score in arrived)
        assert not fake.open


async def test_a_score_without_a_reward_is_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coding(tmp_path, monkeypatch) as (fake, rollouts):
        fake.score = {"verdict": "infra_error", "reward": None, "detail": "no jail"}
        with pytest.raises(RolloutFailed) as caught:
            await rewards(rollouts, "graded")
        assert caught.value.reason == "workspace_ungraded"


async def test_an_episode_that_is_cancelled_closes_its_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_process, "_GRACE_S", 120.0)  # for a busy machine
    async with coding(tmp_path, monkeypatch) as (fake, rollouts):
        hanging = asyncio.create_task(
            rollouts.sample(request("hangs", timeout_s=5.0), lambda *_: None)
        )
        with pytest.raises(RolloutFailed, match="environment_timeout"):
            await hanging
        async with asyncio.timeout(120):
            await fake.all_closed()


async def test_outside_of_an_episode_a_service_must_be_named() -> None:
    with pytest.raises(InvalidInput, match="sandboxes_at"):
        async with sandbox():
            pass
    with pytest.raises(InvalidInput, match="python, bash"):
        async with sandbox(tools=["pyhton"]):
            pass
