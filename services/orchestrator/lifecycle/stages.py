"""What a run goes through: start, first evaluation, training, last evaluation."""

from services.orchestrator.checks.run_check import refuse
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.evaluation.heldout import HeldOut
from services.orchestrator.loop.disk_guard import Room
from services.orchestrator.loop.recovery import RunFailed, start_trainer
from services.orchestrator.loop.training import TrainingLoop
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.run.orchestrator import RunState
from services.protocol.trainer import TrainerState


class Stages:
    """Of one run, one after another; `Progress` shows which."""

    def __init__(
        self,
        context: RunContext,
        tasks: TaskTable,
        book: GroupBook,
        *,
        loop: TrainingLoop,
        heldout: HeldOut,
        room: Room,
    ) -> None:
        self._context, self._tasks, self._book, self._ledger = context, tasks, book, book.ledger
        self._loop, self._heldout, self._room = loop, heldout, room
        self._run, self._config, self._progress = context.run, context.config, context.progress

    async def run(self) -> None:
        """Go through all of them.

        Raises:
            RunFailed: with the reason for people.
            NotReady: a service was away for longer than its deadline.
            InvalidInput: the services do not fit the run.
        """
        progress = self._progress
        progress.enter(RunState.STARTING, "waiting for the weight bus")
        bound, patience_s = self._run.schedule.max_staleness, self._config.replicas_timeout_s
        await self._context.fleet.bound_lag(bound, patience_s)
        progress.detail = "waiting for the trainer"
        state = await start_trainer(self._context)
        version = self._adopt(state)
        progress.detail = f"waiting for rollout servers to hold version {version}"
        await self._context.fleet.wait_settled(version, self._config.replicas_timeout_s)
        # Of services that were away when the run was asked for.
        around = await self._context.peers.surroundings(self._config)
        refuse(self._run, self._tasks, around.of_a_run_that_goes_on() if progress.step else around)
        if not progress.step and not progress.evaluations:
            await self._heldout.measure("before training")
        progress.enter(RunState.TRAINING, "admitting sample groups")
        progress.measure_rate()
        ending = await self._loop.run(version)
        assert progress.policy_version is not None
        await self._context.fleet.wait_settled(
            progress.policy_version, self._config.replicas_timeout_s
        )
        # Without a train step the weights are those of the first evaluation.
        if progress.step:
            await self._heldout.measure("after training")
            if not self._heldout.measured:
                problem = (progress.heldout_problem or "").removeprefix("after training: ")
                ending += f"; held-out pass rate not measured after training: {problem}"
        await self._room.summary_fits()
        progress.detail = ending

    def _adopt(self, state: TrainerState) -> int:
        """Take over where trainer and ledger are; the ledger is never behind a checkpoint."""
        if state.policy_version is None:
            raise RunFailed("the trainer started the run without publishing a version")
        if state.step > self._ledger.last_step():
            raise RunFailed(
                f"the checkpoint is at step {state.step}, the ledger at "
                f"{self._ledger.last_step()}: they are not of the same run"
            )
        # Where versions count from the beginning again, as in a new cluster, nobody can say how
        # stale a result of before is.
        comparable = state.policy_version >= self._ledger.fact("policy_version", 0)
        self._book.resume(state.step, comparable=comparable)
        if state.frontier is not None and not self._ledger.reaches(state.frontier):
            raise RunFailed(
                f"the checkpoint of step {state.step} was written when the ledger had "
                f"{state.frontier}, the ledger has {self._ledger.frontier()}: they are not of the "
                "same run, or one of them is an older copy"
            )
        self._ledger.note(policy_version=state.policy_version)
        progress = self._progress
        progress.step = progress.saved_step = state.step
        progress.policy_version = state.policy_version
        return state.policy_version
