"""Batches as objects, one for each trajectory: how tests write and read them."""

from dataclasses import dataclass

import numpy as np

from services.protocol.train_batch import (
    BatchBuilder,
    ScoredTrajectory,
    TokenRows,
    TrainBatch,
    TrainGroup,
)
from services.protocol.trajectory import PolicySpan, Trajectory


@dataclass(frozen=True, kw_only=True)
class GroupBatch:
    """A train batch by its groups; see `TrainBatch`."""

    run_id: str
    step: int
    groups: tuple[TrainGroup, ...]
    detailed: tuple[int, ...] = ()

    @property
    def built(self) -> TrainBatch:
        """As it is sent."""
        builder = BatchBuilder(run_id=self.run_id, step=self.step)
        for group in self.groups:
            builder.add(group)
        return builder.batch(self.detailed)


def opened(batch: TrainBatch) -> GroupBatch:
    """The groups of a batch that was sent; replicas and text do not travel."""
    rows = batch.rows.split([1] * len(batch.rows))
    facts = zip(
        *(rows, batch.rewards.tolist(), batch.named.tolist(), batch.stale_tokens.tolist()),
        *(batch.truncated, batch.given.tolist()),
        strict=True,
    )
    every = iter(
        [
            ScoredTrajectory(
                trajectory=_trajectory(row, cut=cut),
                reward=reward,
                stale_tokens=old,
                teacher=tuple(row.teacher.tolist()) or None,
                given=given,
                named=tuple(named),
                returns=_returns(row),
            )
            for row, reward, named, old, cut, given in facts
        ]
    )
    groups = tuple(
        TrainGroup(group_id=group, trajectories=tuple(next(every) for _ in range(size)))
        for group, size in zip(batch.group_ids.tolist(), batch.group_sizes.tolist(), strict=True)
    )
    return GroupBatch(run_id=batch.run_id, step=batch.step, groups=groups, detailed=batch.detailed)


def _returns(row: TokenRows) -> tuple[tuple[int, float], ...]:
    return tuple(zip(np.cumsum(row.turn_tokens).tolist(), row.turn_return.tolist(), strict=True))


def _trajectory(row: TokenRows, *, cut: bool) -> Trajectory:
    prompt, mask = int(row.prompt[0]), np.zeros(int(row.answer[0]), dtype=int)
    mask[row.kept()] = 1
    spans, start = [], 0
    for version, tokens in zip(row.span_version.tolist(), row.span_tokens.tolist(), strict=True):
        spans.append(
            PolicySpan(version=version, start=start, end=start + tokens, replica_id="replica")
        )
        start += tokens
    return Trajectory(
        prompt_token_ids=tuple(row.ids[:prompt].tolist()),
        response_token_ids=tuple(row.ids[prompt:].tolist()),
        behaviour_logprobs=tuple(row.logprobs.tolist()),
        loss_mask=tuple(mask.tolist()),
        spans=tuple(spans),
        finish_reason="length" if cut else "stop",
        text="",
    )
