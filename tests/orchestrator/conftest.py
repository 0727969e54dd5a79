"""Fixtures of the orchestrator's tests."""

from dataclasses import replace

import pytest

from services.ledger.sample_group import LedgerGroup, Prompt
from services.orchestrator.core.results import Graded, GroupResult
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.reward.reward_service import Score, Verdict
from services.protocol.run.task import Task
from services.protocol.trajectory import PolicySpan, Trajectory


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the learning curve out: drawing takes longer than a whole run here."""
    monkeypatch.setattr(RunDirectory, "draw_learning_curve", lambda self: None)


@pytest.fixture
def result() -> GroupResult:
    """A sample group that was sampled and scored, one of its answers without a reward."""
    trajectory = Trajectory(
        prompt_token_ids=(1, 2),
        response_token_ids=(3, 150_000, 5),
        behaviour_logprobs=(-0.1, -1 / 3, -1e-17),
        loss_mask=(1, 0, 1),
        spans=(
            PolicySpan(version=4, start=0, end=1, replica_id="a"),
            PolicySpan(version=6, start=1, end=3, replica_id="b"),
        ),
        finish_reason="length",
        text="größer \x00",
    )
    score = Score(
        job_id="j",
        verdict=Verdict.WRONG_ANSWER,
        reward=0.1,
        passed=1,
        total=2,
        seconds=0.5,
        cpu_s=0.25,
        detail="d",
        cached=False,
    )
    failed = replace(score, verdict=Verdict.INFRA_ERROR, reward=None, parts=(score,))
    task = Task.model_validate(
        {"task_id": "t", "messages": [{"role": "user", "content": "c"}], "split": "train"}
    )
    return GroupResult(
        group=LedgerGroup(group_id=7, prompt=Prompt(position=6, epoch=0, task_id="t"), attempt=2),
        task=task,
        graded=(Graded(trajectory=trajectory, score=score),),
        ungraded=(failed,),
        rollout_s=1.5,
        score_s=0.5,
    )
