"""Sample groups on their way from admission to a result."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from services.ledger.sample_group import Ending, LedgerGroup
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.results import GroupResult
from services.orchestrator.failures import one_line
from services.orchestrator.loop.attempt import Attempt, Attempts
from services.orchestrator.loop.no_signal_streak import NoSignalStreak
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.rollout.outside_agents import OF_AGENTS
from services.orchestrator.rollout.rollout import RolloutFailed, RolloutRequest
from services.orchestrator.tasks.curriculum import PassRates
from services.protocol.errors import InvalidInput
from services.protocol.run.task import LIVE, OUTSIDE, Task

_log = Log("orchestrator")


class Groups:
    """Owns the asyncio tasks of open groups, and reports to `GroupBook` how each ends."""

    def __init__(
        self,
        context: RunContext,
        tasks: Mapping[str, Task],
        book: GroupBook,
        *,
        attempts: Attempts,
        record: RunRecord,
        rates: PassRates,
    ) -> None:
        self._context, self._tasks, self._book = context, tasks, book
        self._attempts, self._record, self._rates = attempts, record, rates
        self._run, self._progress, self._tags = context.run, context.progress, context.tags
        # The trainer subtracts a penalty for length: equal rewards can become different ones.
        algorithm = context.run.algorithm
        self._takes_all = (
            algorithm.learns_from_equal_rewards or algorithm.overlong_limit is not None
        )
        self._plays_outside = not {OUTSIDE, LIVE}.isdisjoint(context.run.environments)
        self._rolling: dict[int, Attempt] = {}
        self._interrupting: set[asyncio.Task[None]] = set()
        self.no_signal = NoSignalStreak(context.config, batch_groups=context.run.batch_groups)
        self.defect: BaseException | None = None

    def start(self, group: LedgerGroup) -> None:
        """Begin a rollout of a group that the schedule has admitted."""
        rolling = Attempt()
        work = self._work(group, rolling)
        rolling.task = asyncio.create_task(work, name=f"group-{group.group_id}")
        rolling.task.add_done_callback(lambda task: self._ended(group.group_id, rolling, task))
        self._rolling[group.group_id] = rolling

    def restore(self) -> list[LedgerGroup]:
        """Restore the results that an earlier process of this run finished and did not train.

        Returns:
            The other groups in flight, to be rolled out again.

        Raises:
            InvalidInput: the task of one of them is gone.
        """
        ledger = self._book.ledger
        finished, in_flight = ledger.finished(), ledger.in_flight()
        for group in in_flight:
            self._check_task(group)
        groups = [group for group in in_flight if group.group_id in finished]
        restored = {group.group_id for group in groups if self._restore(group)}
        return [one for one in ledger.in_flight() if one.group_id not in restored]

    def _check_task(self, group: LedgerGroup) -> None:
        """Refuse a group whose row was taken out of the task file since it was admitted."""
        task_id = group.prompt.task_id
        if task_id not in self._tasks:
            fix = (
                f"Sample group {group.group_id} of the run is of this task, which no task file has "
                "any more: put its row back, or begin a new run with this one's newest checkpoint "
                f"(`--branch {self._progress.run_id}`)."
            )
            raise InvalidInput("task_id", task_id, fix)

    def _restore(self, group: LedgerGroup) -> bool:
        group_id, task = group.group_id, self._tasks[group.prompt.task_id]
        packed = self._book.ledger.result(group_id)
        try:
            result = GroupResult.unpacked(packed, group=group, task=task)
        except msgspec.MsgspecError as error:
            _log.warning("result_unreadable", **self._tags, group=group_id, error=str(error))
            self._book.discard(group_id, reason="unreadable")
            return False
        for length in result.lengths:
            self._progress.lengths.sampled(length)
        self._book.restore(result)
        self._queue(result)
        return True

    def close(self, group_id: int, ending: Ending, *, reason: str) -> None:
        """End an open group without a batch, also in the middle of its rollout."""
        rolling = self._rolling.get(group_id)
        if rolling is not None and rolling.answers is not None:
            lengths = rolling.answers.lengths
            self._progress.lengths.cut_off(max(0, self._run.group_size - len(lengths)), lengths)
        self._abandon(group_id)
        self._book.close(group_id, ending, reason=reason)

    def is_given(self, group: LedgerGroup) -> bool:
        """Whether its answer is given, so that no policy version sampled it."""
        return self._tasks[group.prompt.task_id].given

    def roll_out_again(self, group: LedgerGroup, version: int, *, reason: str) -> None:
        """Throw away what an open group has, and start it over in its slot."""
        self._abandon(group.group_id)
        self.start(self._book.restart(group, version, reason=reason))

    def interrupt(self, group_ids: Iterable[int], min_version: int) -> None:
        """Interrupt these groups; they go on from policy version `min_version`.

        Their finished siblings keep their results, the others their tokens. Of a group between
        two attempts there is nothing to stop.
        """
        rolling = (self._rolling[group_id] for group_id in group_ids if group_id in self._rolling)
        requests = [one.request for one in rolling if one.request]
        if requests:
            work = self._interrupt(requests, min_version)
            task = asyncio.create_task(work, name="interrupt")
            self._interrupting.add(task)
            task.add_done_callback(self._interrupting.discard)

    async def _interrupt(self, requests: list[RolloutRequest], min_version: int) -> None:
        calls = (self._attempts.sampler.interrupt(request, min_version) for request in requests)
        missed = sum(await asyncio.gather(*calls))
        RunMetrics.interruptions.inc(len(requests), self._tags)
        RunMetrics.interruptions_missed.inc(missed, self._tags)

    async def cancel_all(self) -> None:
        """End every rollout; the groups stay in flight in the ledger."""
        tasks = [rolling.task for rolling in self._rolling.values() if rolling.task]
        tasks += self._interrupting
        for task in self._interrupting:
            task.cancel()
        for group_id in list(self._rolling):
            self._abandon(group_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _abandon(self, group_id: int) -> None:
        rolling = self._rolling.pop(group_id, None)
        if rolling is None or rolling.task is None or rolling.task.done():
            return  # A task that is done has updated the ledger, though `_ended` comes later.
        rolling.task.cancel()
        # An attempt that another orchestrator goes on with keeps its number only without an end.
        if not (self._plays_outside and self._context.goes_on()):
            self._book.attempt_ended(group_id, oldest_version=None, tokens=rolling.tokens)
        rolling.answers = None  # what still arrives is late

    def _ended(self, group_id: int, rolling: Attempt, task: asyncio.Task[None]) -> None:
        if self._rolling.get(group_id) is rolling:
            del self._rolling[group_id]
        if not task.cancelled() and task.exception() is not None:
            self.defect = task.exception()
        self._context.changes.notify()

    async def _work(self, group: LedgerGroup, rolling: Attempt) -> None:
        """All attempts at one group."""
        for retries_left in range(self._context.config.rollout_retries, -1, -1):
            try:
                result = await self._attempts.make(group, rolling)
            except RolloutFailed as failure:
                self._rolled_out(group, rolling, None)
                if not self._may_retry(group, failure, retries_left):
                    return
                version = self._context.fleet.live_version
                group = self._book.restart(group, version, reason=failure.reason)
            else:
                assert rolling.answers is not None
                self._rolled_out(group, rolling, rolling.answers.oldest_version)
                self._finish(result)
                return

    def _rolled_out(self, group: LedgerGroup, rolling: Attempt, oldest: int | None) -> None:
        tokens = rolling.tokens
        self._book.attempt_ended(group.group_id, oldest_version=oldest, tokens=tokens)
        rolling.answers = None

    def _may_retry(self, group: LedgerGroup, failure: RolloutFailed, retries_left: int) -> bool:
        RunMetrics.rollout_failures.inc(1, self._tags | {"reason": failure.reason})
        _log.warning(
            "rollout_failed",
            run=self._progress.run_id,
            group=group.group_id,
            attempt=group.attempt,
            reason=failure.reason,
            error=str(failure),
        )
        if retries_left and failure.retryable:
            return True
        self._fail(group, failure.reason, str(failure))
        return False

    def _fail(self, group: LedgerGroup, reason: str, problem: str) -> None:
        failures = self._progress.failures
        expected = self._run.is_live and reason in OF_AGENTS
        failures.add(reason, task_id=group.prompt.task_id, problem=problem, expected=expected)
        self._book.ledger.note(failure_example=failures.example)
        self._book.close(group.group_id, "failed", reason=reason)

    def _finish(self, result: GroupResult) -> None:
        given, answers = result.task.given, len(result.graded) + len(result.ungraded)
        needed = 1 if given else self._run.graded_of(answers)
        if len(result.graded) < needed:
            cause, detail = result.why_ungraded
            problem = f"{cause}: fewer than {needed} answers could be graded: {one_line(detail)}"
            self._fail(result.group, cause, problem)
            return
        self._progress.failures.in_row = 0
        if given:
            self.no_signal.interrupt()
        else:
            self._note_rewards(result)
        if not result.trainable and self._refill(result):
            return
        self._book.keep(result)
        self._queue(result)

    def _note_rewards(self, result: GroupResult) -> None:
        rewards = [graded.reward for graded in result.graded]
        self._rates.note(result.task.task_id, rewards)
        if self._teaches(result):
            self.no_signal.clear()
            return
        self.no_signal.add(result)
        if self.no_signal.shows_newest:
            self._record.show([result], step=self._progress.step)

    def _teaches(self, result: GroupResult) -> bool:
        """Whether rewards that differ, or a teacher, leave something to learn from."""
        algorithm = self._run.algorithm
        differs = algorithm.compares_groups and self.no_signal.differs(result)
        return result.trainable or differs or algorithm.distillation is not None

    def _queue(self, result: GroupResult) -> None:
        """Queue a finished group for its batch."""
        self._book.ready(result, trainable=result.trainable or self._takes_all)

    def _refill(self, result: GroupResult) -> bool:
        """Give the place of a group of equal rewards to another prompt, if that is wanted."""
        if not self._run.schedule.dynamic_sampling:
            return False
        if not self._book.refill(result):
            RunMetrics.refills.inc(1, self._tags | {"outcome": "exhausted"})
            return False
        self._progress.lengths.consumed(result.lengths)
        RunMetrics.refills.inc(1, self._tags | {"outcome": "refilled"})
        return True
