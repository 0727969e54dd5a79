"""Random answers to random prompts, and the run in which they are trained on."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import BatchBuilder, ScoredTrajectory, TrainBatch, TrainGroup
from services.protocol.trainer import RunStart
from services.protocol.trajectory import PolicySpan, Trajectory

RUN = "bench"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Groups, answers in each, and tokens of prompts and answers."""

    groups: int
    size: int
    prompt: int
    response: int


def scored(
    prompt: Sequence[int],
    response: Sequence[int],
    reward: float,
    *,
    logprob: float,
    version: int = 0,
) -> ScoredTrajectory:
    """An answer whose tokens all had the same logprob under one policy version."""
    length = len(response)
    trajectory = Trajectory(
        prompt_token_ids=tuple(prompt),
        response_token_ids=tuple(response),
        behaviour_logprobs=(logprob,) * length,
        loss_mask=(1,) * length,
        spans=(PolicySpan(version=version, start=0, end=length, replica_id="replica0"),),
        finish_reason="stop",
        text="",
    )
    return ScoredTrajectory(trajectory=trajectory, reward=reward)


def random_batch(step: int, shape: Shape, *, vocabulary: int, version: int = 0) -> TrainBatch:
    """A batch of random token ids, the same for the same step."""
    draw = random.Random(step)

    def ids(count: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(count)]

    builder = BatchBuilder(run_id=RUN, step=step)
    for group in range(shape.groups):
        prompt = ids(shape.prompt)
        members = [
            scored(prompt, ids(shape.response), draw.random(), logprob=-8.0, version=version)
            for _ in range(shape.size)
        ]
        builder.add(TrainGroup(group_id=group, trajectories=tuple(members)))
    return builder.batch()


def run_start(folder: Path, **algorithm: Any) -> RunStart:
    """The run of the batches, with its checkpoints below a folder."""
    return RunStart(
        run_id=RUN,
        checkpoint_dir=str(folder / "checkpoints"),
        algorithm=AlgorithmConfig(**algorithm),
        temperature=1.0,
        seed=0,
    )
