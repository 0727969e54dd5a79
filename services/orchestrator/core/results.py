"""The result of a sample group that is rolled out and scored."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from services.ledger.sample_group import LedgerGroup
from services.protocol.reward.reward_service import Score
from services.protocol.run.task import Task
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.protocol.trajectory import Trajectory

NO_REWARD, FULL_REWARD, SAME_REWARD = "all rewards 0", "all rewards 1", "all rewards equal"
"""Reasons for which the ledger has a sample group as filtered."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A trajectory and its score, whose reward is a number.

    Attributes:
        teacher: the teacher's logprob of each token of the answer; None without a teacher.
        named: its rewards that are normalised each by itself, in the order of
            `AlgorithmConfig.decoupled`.
        returns: see `ScoredTrajectory`; empty where all tokens have the reward.
    """

    trajectory: Trajectory
    score: Score
    teacher: tuple[float, ...] | None = None
    named: tuple[float, ...] = ()
    returns: tuple[tuple[int, float], ...] = ()

    @property
    def reward(self) -> float:
        """The score's number."""
        assert self.score.reward is not None, "an infrastructure failure is never a reward"
        return self.score.reward


_Packed = tuple[tuple[Graded, ...], tuple[Score, ...], float, float]


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """A sample group, rolled out and scored.

    Attributes:
        graded: trajectories with a reward, in choice order; infrastructure failures are
            left out.
        ungraded: scores of those left out.
        rollout_s: wall time from request to last trajectory, seconds.
        score_s: from there to the last score, seconds.
    """

    group: LedgerGroup
    task: Task
    graded: tuple[Graded, ...]
    ungraded: tuple[Score, ...]
    rollout_s: float
    score_s: float

    @property
    def trainable(self) -> bool:
        """Its answer is given, or rewards differ: a group of equal rewards has no gradient."""
        return (
            self.task.given
            or len({(one.reward, one.named) for one in self.graded}) > 1
            or (len(set(self._returns())) > 1)
        )

    def _returns(self) -> Iterator[tuple[float, ...]]:
        """Of each answer those of its turns, the last again where another answer has more."""
        longest = max(len(one.returns) for one in self.graded) if self.graded else 0
        for one in self.graded:
            values = tuple(value for _, value in one.returns)
            yield values + values[-1:] * (longest - len(values))

    @property
    def equal_rewards(self) -> str:
        """Of a group whose rewards are equal: which they are, as the ledger keeps it."""
        reward = self.graded[0].reward
        return NO_REWARD if reward <= 0 else FULL_REWARD if reward >= 1 else SAME_REWARD

    @property
    def why_ungraded(self) -> tuple[str, str]:
        """The commonest cause of answers without a reward, and the detail of its last one."""
        causes = Counter(one.cause for one in self.ungraded)
        if not causes:
            return "infra_error", "too few came"
        cause = causes.most_common(1)[0][0]
        return cause, next(one.detail for one in reversed(self.ungraded) if one.cause == cause)

    @property
    def lengths(self) -> list[int]:
        """Sampled tokens of each graded trajectory."""
        return [sum(graded.trajectory.loss_mask) for graded in self.graded]

    @property
    def oldest_version(self) -> int:
        """The smallest policy version in any graded trajectory."""
        return min(graded.trajectory.oldest_version for graded in self.graded)

    @property
    def newest_version(self) -> int:
        """The largest policy version in any graded trajectory."""
        return max(graded.trajectory.newest_version for graded in self.graded)

    def packed(self) -> bytes:
        """Bytes for the ledger: all fields but `group` and `task`."""
        return msgspec.msgpack.encode((self.graded, self.ungraded, self.rollout_s, self.score_s))

    @classmethod
    def unpacked(cls, packed: bytes, *, group: LedgerGroup, task: Task) -> Self:
        """The result from bytes that `packed` returned.

        Raises:
            msgspec.MsgspecError: it is damaged, or another version of Millrace wrote it.
        """
        graded, ungraded, rollout_s, score_s = msgspec.msgpack.decode(packed, type=_Packed)
        return cls(
            group=group,
            task=task,
            graded=graded,
            ungraded=ungraded,
            rollout_s=rollout_s,
            score_s=score_s,
        )

    def as_train_group(self, min_version: int) -> TrainGroup:
        """The group for the trainer; tokens of versions before `min_version` carry no gradient."""
        return TrainGroup(
            group_id=self.group.group_id,
            trajectories=tuple(
                ScoredTrajectory(
                    trajectory=without_stale_tokens(graded.trajectory, min_version),
                    reward=graded.reward,
                    teacher=graded.teacher,
                    named=graded.named,
                    returns=graded.returns,
                    given=self.task.given,
                    stale_tokens=tokens_before(graded.trajectory, min_version),
                )
                for graded in self.graded
            ),
        )


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
    """Number of tokens that the policy sampled under versions before `min_version`."""
    if trajectory.oldest_version >= min_version:
        return 0
    old = [span for span in trajectory.spans if span.version < min_version]
    return sum(sum(trajectory.loss_mask[span.start : span.end]) for span in old)
