"""A real engine as the teacher, and a real chat template before given answers."""

import json
from pathlib import Path

import pytest

from millrace_tools.client.runs_client import RunsClient
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import RolloutClient, RolloutRequest
from services.orchestrator.rollout.teacher import Teacher
from services.protocol.run.distillation import DistillationConfig
from services.protocol.run.orchestrator import RunState
from services.protocol.run.task import Task
from services.protocol.trajectory import Trajectory
from tests.cluster.conftest import MODEL_NAME, Cluster
from tests.cluster.test_faults import balances

ASKED = [{"role": "user", "content": "a plus b, minus c"}]
EXACT = 0.02  # nats: prefill and decode round differently


async def test_a_teacher_that_is_the_policy_agrees_with_every_sampled_token(
    cluster: Cluster,
) -> None:
    config = OrchestratorConfig.model_validate(
        {
            "router_url": cluster.url,
            "teachers": {"same": {"url": cluster.url, "model": MODEL_NAME}},
        }
    )
    task = Task.model_validate({"task_id": "t", "messages": ASKED, "split": "train"})
    request = RolloutRequest(
        session="teacher-0",
        messages=ASKED,
        n=4,
        temperature=1.0,
        max_tokens=24,
        seed=1,
        limits=RolloutLimits(total_s=120.0, progress_s=60.0),
    )
    sampled: list[Trajectory] = []
    async with RolloutClient(config, model=MODEL_NAME) as rollouts:
        await rollouts.sample(request, lambda index, one, score=None: sampled.append(one))
    same = DistillationConfig(teacher="same")
    assert len(sampled) == 4
    async with Teacher(same, config, MODEL_NAME) as teacher:
        await teacher.check()
        for one in sampled:
            found = await teacher.submit(task, one)
            assert found == pytest.approx(one.behaviour_logprobs, abs=EXACT)


def test_a_run_that_is_resumed_within_its_warm_up_ends_it_and_then_learns_from_a_teacher(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = cluster.run_config()
    path = tmp_path / "answers.jsonl"
    rows = [
        {
            "task_id": f"given-{number}",
            "messages": [{"role": "user", "content": f"a plus {number}"}],
            "split": "train",
            "answer": f"def f(a):\n    return a + {number}",
        }
        for number in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = cluster.run_config(
        task_file=None,
        tasks=[{"file": own.task_file}, {"file": str(path), "given": True, "weight": 0.0}],
        group_size=2,
        steps=3,
        algorithm={
            "learning_rate": 1e-3,
            "cross_entropy": {"warmup_steps": 2},
            "distillation": {"teacher": "policy", "context": "Think of the operation's name."},
        },
    )
    stopped = cluster.run_to_the_end(config.model_copy(update={"steps": 1}))
    assert (stopped.state, stopped.step) == (RunState.FINISHED, 1), stopped.detail
    with RunsClient(cluster.url) as client:
        status = cluster.follow(client, client.start(config, resume=stopped.run_id).run_id)
    assert (status.state, status.run_id) == (RunState.FINISHED, stopped.run_id), status.detail
    assert balances(status.ledger)
    text = (Path(status.run_dir) / "metrics.jsonl").read_text()
    first, second, third = [json.loads(line) for line in text.splitlines()]
    assert [one["given_answers"] for one in (first, second, third)] == [4, 4, 0]
    assert first["trainer"]["cross_entropy"] > second["trainer"]["cross_entropy"] > 0
    assert third["trainer"]["kl_teacher"] >= 0
    assert third["trainer"]["grad_norm"] > 0
