"""Leaving tokens that are too old out of the gradient."""

from dataclasses import replace

from services.protocol.trajectory import Trajectory


def without_stale_tokens(trajectory: Trajectory, min_version: int) -> Trajectory:
    """The trajectory with loss mask 0 for tokens sampled under versions before `min_version`.

    Nothing else changes: they stay what the later tokens were sampled after, and its reward
    stays in its group's statistics.
    """
    if trajectory.oldest_version >= min_version:
        return trajectory
    mask = list(trajectory.loss_mask)
    for span in trajectory.spans:
        if span.version < min_version:
            mask[span.start : span.end] = [0] * (span.end - span.start)
    return replace(trajectory, loss_mask=tuple(mask))


def tokens_before(trajectory: Trajectory, min_version: int) -> int:
    """How many of the tokens that the policy sampled are of versions before `min_version`."""
    if trajectory.oldest_version >= min_version:
        return 0
    old = [span for span in trajectory.spans if span.version < min_version]
    return sum(sum(trajectory.loss_mask[span.start : span.end]) for span in old)
