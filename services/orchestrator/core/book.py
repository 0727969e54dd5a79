"""The life of every sample group: the only writer of ledger and schedule, and owner of results.

Each method is a transition. The ledger's transaction comes first, so that a kill loses nothing
that was decided; then the schedule; then each observer gets an event.
"""

from collections.abc import Iterable, Sequence

from services.ledger.ledger import Ledger
from services.ledger.sample_group import Ending, LedgerGroup, Prompt
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.events import (
    BatchTaken,
    BatchTrained,
    Event,
    GroupClosed,
    GroupReady,
    GroupSampled,
    GroupScored,
    GroupStarted,
    Idle,
    Observer,
    RolledBack,
    RunOver,
    TrainingBegan,
    VersionLive,
)
from services.orchestrator.core.results import GroupResult
from services.orchestrator.core.schedule import Schedule, Selection
from services.protocol.reward.reward_service import Score
from services.protocol.trajectory import Trajectory

_log = Log("orchestrator")


class GroupBook:
    """The sample groups of one run.

    Args:
        run_id: the run.
        ledger: where groups are kept on disk.
        schedule: which may start and which are trained next.
        observers: get an event of each transition.

    Attributes:
        ledger: for questions; what changes a group is a method here.
        schedule: for questions, too.
    """

    def __init__(
        self, run_id: str, ledger: Ledger, schedule: Schedule, observers: Iterable[Observer]
    ) -> None:
        self.ledger, self.schedule = ledger, schedule
        self._tags, self._observers = {"run": run_id}, tuple(observers)
        self._results: dict[int, GroupResult] = {}

    def _emit(self, event: Event) -> None:
        """Send an event to each observer; a failure is logged and counted, and changes nothing."""
        for observer in self._observers:
            try:
                observer.on(event)
            except Exception as error:  # noqa: BLE001  an observer must not change the run
                name = type(observer).__name__
                _log.exception("observer_failed", **self._tags, observer=name, error=repr(error))
                RunMetrics.observer_failures.inc(1, self._tags | {"observer": name})

    # Admission

    def begin(self) -> None:
        """Training begins, with nothing open in the schedule."""
        schedule = self.schedule
        self._emit(TrainingBegan(schedule=schedule.config, batch_groups=schedule.batch_groups))

    def admit(self, prompts: Sequence[Prompt], version: int) -> list[LedgerGroup]:
        """Open a group for each prompt; leased replicas serve `version` or newer.

        Raises:
            ValueError: a group is open already.
        """
        groups = self.ledger.admit(prompts, version=version) if prompts else []
        for group in groups:
            self._begin(group, version)
        return groups

    def admit_again(self, group: LedgerGroup, version: int) -> None:
        """A group in flight that lost its rollout gets a slot again."""
        self.ledger.restart(group.group_id, version=version)
        self._begin(group, version)

    def _begin(self, group: LedgerGroup, version: int) -> None:
        self.schedule.admit(group.group_id, version)
        self._emit(_started(group))

    def restore(self, result: GroupResult) -> None:
        """A group that an earlier process finished waits for its batch again."""
        group_id, oldest = result.group.group_id, result.oldest_version
        self.schedule.admit(group_id, oldest)
        self.schedule.sampled(group_id, oldest, result.newest_version)
        self._emit(_started(result.group))

    # Rollouts

    def sampled(self, group_id: int, oldest: int, newest: int) -> None:
        """A trajectory of the group has come, with tokens of these policy versions."""
        self.schedule.sampled(group_id, oldest, newest)

    def sampling_ended(
        self, group_id: int, began_at: float, arrivals: Sequence[tuple[float, Trajectory]]
    ) -> None:
        """No more trajectories of the group come, whether all have come or not."""
        self._emit(GroupSampled(group_id=group_id, began_at=began_at, arrivals=arrivals))

    def rolled_out(self, group_id: int) -> None:
        """All trajectories of the group have come; they are being scored."""
        self.schedule.rolled_out(group_id)

    def scored(self, group_id: int, scores: Sequence[Score]) -> None:
        """The answers of the group have their scores."""
        self._emit(GroupScored(group_id=group_id, scores=scores))

    def attempt_ended(self, group_id: int, *, oldest_version: int | None, tokens: int) -> None:
        """A rollout ended; `oldest_version` is None if it failed."""
        self.ledger.rolled_out(group_id, oldest_version=oldest_version, tokens=tokens)

    def discard(self, group_id: int, *, reason: str) -> int:
        """Throw away what a group has; returns the number of its next attempt."""
        return self.ledger.retry(group_id, reason=reason)

    def restart(self, group: LedgerGroup, version: int | None, *, reason: str) -> LedgerGroup:
        """Start a group over in its slot; `version` is None while no replica serves one."""
        attempt = self.discard(group.group_id, reason=reason)
        self._results.pop(group.group_id, None)
        if version is not None:
            self.ledger.restart(group.group_id, version=version)
            self.schedule.restart(group.group_id, version)
        again = LedgerGroup(group_id=group.group_id, prompt=group.prompt, attempt=attempt)
        self._emit(_started(again))
        return again

    def keep(self, result: GroupResult) -> None:
        """Write a finished group's result to the ledger, so that no kill costs it."""
        self.ledger.keep_result(result.group.group_id, result.packed())

    def ready(self, result: GroupResult, *, trainable: bool) -> None:
        """A finished group waits for its batch; `trainable`: there is something to learn."""
        group_id = result.group.group_id
        self.schedule.ready(group_id, result.oldest_version, trainable=trainable)
        self._results[group_id] = result
        self._emit(GroupReady(group_id=group_id))

    def refill(self, result: GroupResult) -> bool:
        """Filter a group and give its place in a batch to another prompt.

        Returns:
            False if the place was filled as often as it may be: the group stays open.
        """
        group_id, reason = result.group.group_id, result.equal_rewards
        if not self.schedule.refill(group_id):
            return False
        self.ledger.close_group(group_id, "filtered", reason=reason)
        self._emit_filtered([result], reason)
        return True

    def close(self, group_id: int, ending: Ending, *, reason: str) -> None:
        """End an open group without a batch.

        Raises:
            LedgerError: it is not in flight.
        """
        self.ledger.close_group(group_id, ending, reason=reason)
        self.schedule.close(group_id)
        self._results.pop(group_id, None)
        self._emit(GroupClosed(group_id=group_id, ending=ending, reason=reason))

    # Batches

    def take_batch(self, version: int) -> Selection | None:
        """The next batch of a trainer at `version`, None while it must wait."""
        batch = self.schedule.select(version)
        if batch is not None:
            at_bound = max(batch.staleness, default=0) >= self.schedule.bound > 0
            taken, ready = batch.train + batch.filtered, self.schedule.slots.ready
            self._emit(BatchTaken(group_ids=taken, at_bound=at_bound, ready=ready))
        return batch

    def results(self, batch: Selection) -> list[GroupResult]:
        """The results of a batch that was taken, trained groups first."""
        return [self._results[group_id] for group_id in batch.train + batch.filtered]

    def trained(self, step: int, batch: Selection, version: int) -> None:
        """Train step `step` made policy `version` of a batch."""
        self._close_batch(step, train=batch.train, filtered=batch.filtered)
        self.schedule.published(version)
        self._emit(BatchTrained(group_ids=batch.train, step=step, version=version))
        for group_id in batch.train:
            del self._results[group_id]
            self._emit(GroupClosed(group_id=group_id, ending="trained"))
        for group_id in batch.filtered:
            del self._results[group_id]
            self._emit(GroupClosed(group_id=group_id, ending="filtered"))

    def _close_batch(self, step: int, *, train: Sequence[int], filtered: Sequence[int]) -> None:
        reasons = {group_id: self._results[group_id].equal_rewards for group_id in filtered}
        self.ledger.close_batch(step, train=train, filtered=filtered, reasons=reasons)

    def filtered(self, step: int, batch: Selection) -> None:
        """A batch had nothing to learn from; `step` is the newest train step."""
        self._close_batch(step, train=(), filtered=batch.filtered)
        self.schedule.published(None)
        self._emit_filtered([self._results.pop(group_id) for group_id in batch.filtered])

    def _emit_filtered(self, results: Sequence[GroupResult], reason: str = "") -> None:
        for result in results:
            group_id = result.group.group_id
            closed = GroupClosed(group_id=group_id, ending="filtered", reason=reason, result=result)
            self._emit(closed)

    def live(self, version: int) -> None:
        """Every leased replica serves at least this policy version."""
        self.schedule.live(version)
        self._emit(VersionLive(version=version))

    def trainer_waits_for(self, cause: str | None) -> None:
        """From now on the trainer waits for this; None: it trains."""
        schedule = self.schedule
        self._emit(Idle(trainer=cause, slots=schedule.slots, capacity=schedule.capacity))

    # Trainer losses, and the end

    def resume(self, step: int, *, comparable: bool, repeats: bool) -> None:
        """The run resumes from a checkpoint of train step `step`, in a new process.

        Args:
            step: groups of later steps are open again.
            comparable: policy versions count on from the process before, so that what it finished
                is as stale as it says.
            repeats: every later batch is to hold the groups that it would have held.
        """
        keep = self.ledger.finished() if comparable and not repeats else frozenset()
        reopened = self.ledger.rollback(step, keep=keep, filtered=repeats, comparable=comparable)
        self._emit(RolledBack(step=step, reopened=reopened))

    def trainer_lost(self) -> None:
        """The trainer comes back with a later version and trains the batch it had first."""
        self.schedule.lost()

    def roll_back(self, step: int, version: int) -> tuple[frozenset[int], int]:
        """The trainer went back to the checkpoint of train step `step`, with policy `version`.

        Returns:
            The groups that stay open with what they have, and how many closed ones are open again.
        """
        keep = self.schedule.went_back(version)
        reopened = self.ledger.rollback(step, keep=keep)
        self._emit(RolledBack(step=step, reopened=reopened))
        return keep, reopened

    def expire_all(self) -> None:
        """The run has all its train steps: close the groups in flight as expired.

        The schedule is asked nothing more.
        """
        reason = "the run is over"
        for group in self.ledger.in_flight():
            self.ledger.close_group(group.group_id, "expired", reason=reason)
            self._emit(GroupClosed(group_id=group.group_id, ending="expired", reason=reason))

    def end(self) -> None:
        """The run is over."""
        self._emit(RunOver())


def _started(group: LedgerGroup) -> GroupStarted:
    return GroupStarted(
        group_id=group.group_id, task_id=group.prompt.task_id, attempt=group.attempt
    )
