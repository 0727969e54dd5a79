"""`determinism: true`: what repeats, and what is refused because it cannot."""

from pathlib import Path
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.trajectory import PolicySpan, Trajectory
from services.protocol.weights.weight_bus import Member
from tests.orchestrator.fakes import Asked, FakeBus, World, run_to_end, world

pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture
def _engines_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    member = FakeBus._member

    def deterministic(bus: FakeBus, name: str) -> Member:
        told = member(bus, name)
        return Member(**{**vars(told), "deterministic": True})

    monkeypatch.setattr(FakeBus, "_member", deterministic)


def breaks_first_attempts(cluster: World) -> None:
    """A third of the groups loses answers, and a third gets one that two replicas made."""

    def third(asked: Asked) -> int | None:
        _, group, attempt = asked.session.rsplit("-", 2)
        return int(group) % 3 if asked.body["n"] > 1 and attempt == "1" else None

    cluster.router.cut_after = lambda asked: 1 if third(asked) == 0 else None
    cluster.router.moves = lambda asked, index: third(asked) == 1 and index == 2


@pytest.mark.usefixtures("_engines_repeat")
async def test_a_group_that_is_sampled_again_gets_the_same_answers(tmp_path: Path) -> None:
    weights = []
    for name in ("quiet", "broken"):
        folder = tmp_path / name
        folder.mkdir()
        async with world(folder) as cluster:
            if name == "broken":
                breaks_first_attempts(cluster)
            config = cluster.run_config(seed=7, determinism=True, steps=3)
            status = await run_to_end(cluster, config)
            assert status.state is RunState.FINISHED, status.detail
            assert status.ledger.failed == 0
            assert cluster.trainer.starts[-1].determinism
            weights.append(cluster.trainer.weights)
            asked = [one for one in cluster.router.asked if one.body["n"] > 1]
            seeds = {(one.session.rsplit("-", 2)[1], one.body["seed"]) for one in asked}
            groups = {group for group, _ in seeds}
            assert len(seeds) == len(groups)
            if name == "broken":
                assert len(asked) > len(groups)
    assert weights[0] == weights[1]


async def test_engines_that_do_not_repeat_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        with pytest.raises(InvalidInput, match="set `determinism: true` in the rollout servers'"):
            await run_to_end(cluster, cluster.run_config(determinism=True))


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"schedule": {"preset": "one_step_off"}}, "schedule.max_staleness", "max_staleness: 0"),
        ({"schedule": {"preset": "stream"}}, "schedule.oversample", "set schedule.oversample: 0.0"),
        ({"schedule": {"unfinished": "continue"}}, "schedule.unfinished", "unfinished: wait"),
        ({"algorithm": {"preset": "dapo"}}, "schedule.dynamic_sampling", "sampling: false"),
        ({"schedule": {"adaptive": True}}, "schedule.adaptive", "adaptive: false"),
        ({"curriculum": {"low": 0.1}}, "curriculum", "leave it out"),
        ({"environment": "external"}, "environment", "of your own"),
        (
            {"algorithm": {"distillation": {"teacher": "large"}}},
            "algorithm.distillation.teacher",
            "use policy",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_repeat_is_refused_with_field_and_fix(
    changes: dict[str, Any], field: str, fix: str
) -> None:
    run = {
        "name": "r",
        "task_file": "/t.jsonl",
        "model": "m",
        "steps": 2,
        "batch_groups": 2,
        "group_size": 2,
    }
    assert RunConfig.from_data(run | changes, source="run")
    with pytest.raises(InvalidInput) as refused:
        RunConfig.from_data(run | changes | {"determinism": True}, source="run")
    assert refused.value.field == f"run: {field}"
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("mask", "starts", "continued"),
    [
        ((1, 1, 1, 1), (0,), False),
        ((1, 1, 1, 1), (0, 2), True),
        ((1, 1, 0, 1), (0, 2), False),  # two calls of a session, on two replicas
        ((1, 0, 1, 1), (0, 1, 3), True),  # the second call was cut
    ],
)
def test_an_answer_that_was_cut_is_told_from_several_calls(
    mask: tuple[int, ...], starts: tuple[int, ...], continued: bool
) -> None:
    ends = (*starts[1:], len(mask))
    trajectory = Trajectory(
        prompt_token_ids=(1,),
        response_token_ids=(2,) * len(mask),
        behaviour_logprobs=(-1.0,) * len(mask),
        loss_mask=mask,
        spans=tuple(
            PolicySpan(version=1, start=start, end=end, replica_id=f"r{start}")
            for start, end in zip(starts, ends, strict=True)
        ),
        finish_reason="stop",
        text="",
    )
    assert trajectory.was_continued is continued
