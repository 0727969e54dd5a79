"""Sample groups in a row from which there was nothing to learn."""

from collections import Counter

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.results import GroupResult
from services.orchestrator.failures import one_line
from services.orchestrator.loop.recovery import RunFailed


class NoSignalStreak:
    """The newest sample groups, as long as the rewards within each of them were equal."""

    def __init__(self, config: OrchestratorConfig, *, batch_groups: int) -> None:
        self._batch_groups = batch_groups
        self._most = config.no_signal_batches * batch_groups
        self._samples = config.sample_trajectories
        self._taught = 0
        self._begin()

    def clear(self) -> None:
        """There was something to learn from a group: the streak ends."""
        self._taught += 1
        self._begin()

    def interrupt(self) -> None:
        """There was a given answer to learn from, which says nothing of the rewards."""
        self._begin()

    def _begin(self) -> None:
        self._groups = 0
        self._rewards: Counter[float] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._detail = ""

    def add(self, result: GroupResult) -> None:
        """One more group of equal rewards."""
        self._groups += 1
        for graded in result.graded:
            self._rewards[graded.reward] += 1
            self._verdicts[str(graded.score.verdict)] += 1
            self._detail = graded.score.detail or self._detail

    def differs(self, result: GroupResult) -> bool:
        """Whether a group has other rewards than the groups of the streak."""
        rewards = {graded.reward for graded in result.graded}
        return bool(self._rewards) and not rewards <= self._rewards.keys()

    @property
    def shows_newest(self) -> bool:
        """Whether the newest group is one that people should see, a few of each batch.

        A row shorter than a batch is nothing unusual, and the train steps show theirs.
        """
        place = self._groups % self._batch_groups
        return self._groups >= self._batch_groups and place < self._samples

    @property
    def full(self) -> bool:
        """The streak is so long that the run should end."""
        return self._groups >= self._most

    def ending(self) -> str:
        """Why a run with this row has nothing left to learn.

        Raises:
            RunFailed: no answer got a reward: that is a mistake somewhere, not an end.
        """
        answers = self._rewards.total()
        verdicts = ", ".join(f"{name} {count}" for name, count in self._verdicts.most_common())
        if max(self._rewards) <= 0.0:
            example = f"; for example {one_line(self._detail)}" if self._detail else ""
            raise RunFailed(
                f"nothing to learn from: the rewards of the last {answers} answers, in "
                f"{self._groups} sample groups, were all 0 ({verdicts}{example}). {self._advice}; "
                "trajectories.jsonl in the run directory shows answers"
            )
        if min(self._rewards) >= 1.0:
            return (
                f"nothing left to learn: the tasks are solved already, the last {answers} "
                f"answers, in {self._groups} sample groups, all got the full reward"
            )
        return (
            f"nothing left to learn: in the last {self._groups} sample groups the rewards "
            f"within each group were equal ({verdicts}), so each task is either solved or out "
            "of the model's reach"
        )

    @property
    def _advice(self) -> str:
        """Advice for rewards that are all 0."""
        if not self._taught:
            return (
                "Check the tasks' graders (entry_point, template, tests), and that the tasks are "
                "within the model's reach"
            )
        return (
            f"The rewards of {self._taught} sample groups before them differed, so the policy has "
            "collapsed: lower algorithm.learning_rate, minibatches or schedule.max_staleness, "
            "and see clip fractions and effective_sample_size (docs/diagnostics.md)"
        )
