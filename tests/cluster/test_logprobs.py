"""Every served logprob is that of the policy version on its label."""

import json
import threading
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import RunState
from tests.cluster.conftest import MODEL_NAME, Cluster
from tests.cluster.reference import checkpointed_model, initial_model, largest_difference

TOLERANCE = 1e-4
"""Rounding of float32 gives 1e-5 in the worst of thousands of tokens; a wrong version far more."""


def sample(cluster: Cluster, tokens: int) -> dict[str, Any]:
    """One answer of exactly so many tokens, with its trajectory."""
    answer = cluster.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "a times 7, plus b"}],
        temperature=1.0,
        max_tokens=tokens,
        extra_body={"return_trajectory": True, "ignore_eos": True},
    )
    trajectory: dict[str, Any] = answer.choices[0].model_dump()["trajectory"]
    assert len(trajectory["token_ids"]) == tokens
    return trajectory


def versions(trajectory: dict[str, Any]) -> set[int]:
    return {version for version, *_ in trajectory["spans"]}


def published_models(cluster: Cluster, run_dir: Path) -> dict[int, PreTrainedModel]:
    """The model under each version that a run published."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        line["policy_version"]: checkpointed_model(
            run_dir / "checkpoints" / f"step-{line['step']:08d}"
        )
        for line in lines
    }


def test_every_token_knows_its_policy_version(cluster: Cluster) -> None:
    """Before pushes, across them in mid-answer, and after them."""
    first_run = cluster.run_to_the_end(cluster.run_config(steps=1))
    models = published_models(cluster, Path(first_run.run_dir))
    before = sample(cluster, 64)
    assert versions(before) == {max(models)}
    assert largest_difference(models, before) < TOLERANCE

    crossing: list[dict[str, Any]] = []
    over = threading.Event()

    def keep_sampling() -> None:
        while not over.is_set():
            crossing.append(sample(cluster, 400))

    samplers = [threading.Thread(target=keep_sampling) for _ in range(3)]
    with RunsClient(cluster.url) as client:
        run_id = client.start(cluster.run_config(steps=5)).run_id
        for sampler in samplers:
            sampler.start()
        status = cluster.follow(client, run_id)
        over.set()
        for sampler in samplers:
            sampler.join(timeout=300)
    assert status.state == RunState.FINISHED, status.detail

    published = published_models(cluster, Path(status.run_dir))
    # A run starts from the deployed weights, which it publishes before its first step.
    models |= published | {min(published) - 1: initial_model(cluster.model_dir)}
    assert any(len(versions(trajectory)) > 1 for trajectory in crossing)
    version = max(versions(before))
    mislabelled = {version: models[max(published)]}
    assert largest_difference(mislabelled, before) > 10 * TOLERANCE
    for trajectory in crossing:
        assert largest_difference(models, trajectory) < TOLERANCE

    after = sample(cluster, 64)
    assert versions(after) == {max(models)}
    assert largest_difference(models, after) < TOLERANCE
