"""One run from its first evaluation to its summary; it owns every task of it."""

import asyncio
from collections import Counter

from services.ledger.ledger import Ledger
from services.observability.metrics import RunMetrics
from services.orchestrator.changes import Changes
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import Peers, RunContext
from services.orchestrator.core.decisions import DecisionLog
from services.orchestrator.core.length_bias import SETTLED_BATCHES, LengthBias
from services.orchestrator.core.progress import Progress
from services.orchestrator.core.schedule import Schedule
from services.orchestrator.evaluation.evaluation import Evaluator
from services.orchestrator.evaluation.heldout import HeldOut
from services.orchestrator.failures import Failures
from services.orchestrator.fleet import Fleet
from services.orchestrator.lifecycle.background import Background
from services.orchestrator.lifecycle.ending import RunEnding
from services.orchestrator.lifecycle.stages import Stages
from services.orchestrator.loop.admission import Admission, AdmissionWindow
from services.orchestrator.loop.attempt import Attempts
from services.orchestrator.loop.checkpoints import Checkpoints
from services.orchestrator.loop.disk_guard import Room
from services.orchestrator.loop.groups import Groups
from services.orchestrator.loop.recovery import RunFailed
from services.orchestrator.loop.run_disk import RunDisk
from services.orchestrator.loop.train_steps import TrainSteps
from services.orchestrator.loop.trainer_idle import TrainerIdle
from services.orchestrator.loop.training import TrainingLoop
from services.orchestrator.observers.group_metrics import GroupMetrics
from services.orchestrator.observers.group_traces import GroupTraces
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.rollout.scoring import Scorer
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.orchestrator.run_folder.run_log import run_log
from services.orchestrator.tasks.curriculum import PassRates
from services.orchestrator.tasks.prompts import PromptSource
from services.orchestrator.tasks.task_table import TaskTable
from services.orchestrator.trackers.trackers import Trackers
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import LedgerCounts, RunConfig, RunState, RunStatus


class Run:
    """A run. `execute` is its whole life; `stop` ends it early; `status` may be asked always."""

    def __init__(
        self,
        *,
        run_id: str,
        run: RunConfig,
        config: OrchestratorConfig,
        tasks: TaskTable,
        peers: Peers,
        directory: RunDirectory,
    ) -> None:
        self._directory, self._tasks = directory, tasks
        self._ledger = Ledger(directory.ledger)
        progress, changes = _remembered(run_id, run, self._ledger, directory), Changes()
        progress.heldout_set = tasks.first_set
        self.progress = progress
        self._context = context = RunContext(
            run=run,
            config=config,
            peers=peers,
            fleet=Fleet(peers.bus, changes),
            progress=progress,
            changes=changes,
        )
        self._client = peers.rollouts(run, config, run_id)
        self._scorer = Scorer(peers.reward, config)
        self._rates = PassRates(directory.pass_rates)
        trackers = Trackers(run, run_id=run_id, run_dir=directory.path)
        self._record = RunRecord(
            directory=directory,
            ledger=self._ledger,
            progress=progress,
            samples=config.sample_trajectories,
            trackers=trackers,
        )
        self._traces, self._decisions = GroupTraces(run_id), DecisionLog(directory.decisions)
        self._book, self._window = self._group_book()
        disk = RunDisk(directory.path, config=config, progress=progress, changes=changes)
        self._room = Room(disk, ledger=self._ledger, changes=changes)
        self._heldout = self._held_out_sets()
        self._loop = self._training_loop()
        self._stages = Stages(
            context,
            tasks,
            self._book,
            loop=self._loop,
            heldout=self._heldout,
            room=self._room,
        )
        self._background = self._loops_beside()
        self._ending = RunEnding(
            context, self._book, record=self._record, directory=directory, trackers=trackers
        )
        self._stop = asyncio.Event()
        self._keep_progress = True
        self._counts = LedgerCounts()

    def _loops_beside(self) -> Background:
        return Background(
            self._context,
            self._book.schedule,
            scorer=self._scorer,
            room=self._room,
            window=self._window,
            timeline=self._record.timeline,
        )

    def _group_book(self) -> tuple[GroupBook, AdmissionWindow]:
        """What becomes of sample groups, and who follows it."""
        run, run_id = self._context.run, self._context.run_id
        schedule = Schedule(
            run.schedule, batch_groups=run.batch_groups, listener=self._decisions.hear
        )
        window = AdmissionWindow(batch_groups=run.batch_groups, bound=schedule.capacity)
        observers = (
            GroupMetrics(run_id),
            self._traces,
            self._record.timeline,
            self._record,
            self._decisions,
            window,
        )
        return GroupBook(run_id, self._ledger, schedule, observers), window

    def _held_out_sets(self) -> HeldOut:
        evaluator = Evaluator(
            run=self._context.run,
            run_id=self._context.run_id,
            sampler=self._client,
            scorer=self._scorer,
            concurrency=self._context.config.evaluation_concurrency,
        )
        return HeldOut(self._context, self._tasks, evaluator=evaluator, record=self._record)

    def _training_loop(self) -> TrainingLoop:
        context, book, timeline = self._context, self._book, self._record.timeline
        idle = TrainerIdle(context, book.schedule, timeline)
        groups = self._open_groups()
        admission = Admission(
            context,
            book,
            groups,
            prompts=PromptSource(self._tasks.order(self._rates), self._tasks.train),
            window=self._window,
            idle=idle,
        )
        steps = TrainSteps(
            context,
            book,
            traces=self._traces,
            idle=idle,
            record=self._record,
            checkpoints=Checkpoints(context, self._ledger, room=self._room, timeline=timeline),
        )
        return TrainingLoop(
            context, book, groups, admission=admission, steps=steps, heldout=self._heldout
        )

    def _open_groups(self) -> Groups:
        attempts = Attempts(
            self._context,
            self._tasks,
            self._book,
            sampler=self._client,
            scorer=self._scorer,
            traces=self._traces,
        )
        return Groups(
            self._context,
            self._tasks,
            self._book,
            attempts=attempts,
            record=self._record,
            rates=self._rates,
        )

    def status(self) -> RunStatus:
        """Where the run is."""
        if self.progress.active:
            self._counts = self._ledger.counts()
        status = self.progress.status(
            ledger=self._counts, live_replicas=len(self._context.fleet.leased)
        )
        if self._context.run.schedule.adaptive:
            status.admission_window = self._window.size
        return status

    def trajectories(self, limit: int) -> list[dict[str, object]]:
        """The newest trajectories kept for people."""
        return self._directory.trajectories(limit)

    def pause(self) -> None:
        """Admit no sample group and begin no train step until `go_on`; rollouts end as usual."""
        self._set_paused(True)

    def go_on(self) -> None:
        """End a pause."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self.progress.paused = paused
        RunMetrics.paused.set(float(paused), self._context.tags)
        self._context.changes.notify()

    async def checkpoint(self) -> None:
        """Write a checkpoint after the train step in progress, unless the newest one is of it.

        Raises:
            NotReady: the trainer does not write one now.
        """
        try:
            async with asyncio.timeout(self._context.config.stop_timeout_s), self._loop.steps.lock:
                await self._ending.save()
        except TimeoutError:
            raise NotReady(f"no checkpoint in {self._context.config.stop_timeout_s:g} s") from None
        if self.progress.saved_step < self.progress.step:
            raise NotReady(f"the checkpoint of step {self.progress.step} was not written")

    def stop(self, *, keep_progress: bool = True) -> None:
        """Ask the run to end; `keep_progress` writes a checkpoint, so that nothing is lost."""
        self._keep_progress = keep_progress
        self._stop.set()

    async def execute(self) -> None:
        """Live the whole life of the run; ends in one of the three last states."""
        with run_log(self._directory.path, self.progress.run_id):
            await self._live()

    async def _live(self) -> None:
        work = asyncio.create_task(self._work(), name="run")
        stop = asyncio.create_task(self._stop.wait(), name="run-stop")
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._interrupt(work)
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
            await self._ending.release_replicas()
        await self._ending.close_record()
        self._decisions.close()
        self._rates.close()
        counts = await self._ending.close(*self._outcome(work), seed=self._context.run.seed)
        self._counts = counts or self._counts

    def _outcome(self, work: asyncio.Task[None]) -> tuple[RunState, str]:
        if work.cancelled():
            return RunState.STOPPED, f"stopped at step {self.progress.step}; it can be resumed"
        error = work.exception()
        if error is None:
            return RunState.FINISHED, self.progress.detail
        if isinstance(error, RunFailed | NotReady | InvalidInput):
            return RunState.FAILED, str(error)
        return RunState.FAILED, self._ending.explain(error)

    async def _interrupt(self, work: asyncio.Task[None]) -> None:
        """Let a train step in progress end, so that trainer and ledger agree, then cancel."""
        self.progress.detail = "stopping"
        try:
            async with asyncio.timeout(self._context.config.stop_timeout_s):
                async with self._loop.steps.lock:
                    work.cancel()
                    if self._keep_progress:
                        await self._ending.save()
        except TimeoutError as error:
            self._ending.failed("checkpoint", error)
        work.cancel()

    async def _work(self) -> None:
        async with self._client, self._heldout:
            await self._background.beside(self._stages.run())


def _remembered(run_id: str, run: RunConfig, ledger: Ledger, directory: RunDirectory) -> Progress:
    """Where the run was when it ended last; a new run remembers nothing."""
    settled_after = SETTLED_BATCHES * run.batch_groups * run.group_size
    example = ledger.fact("failure_example", "")
    return Progress(
        run_id=run_id,
        run_dir=str(directory.path),
        steps=run.steps,
        tokens=ledger.fact("tokens", 0),
        recoveries=ledger.fact("recoveries", 0),
        elapsed_before_s=ledger.fact("elapsed_s", 0.0),
        lengths=LengthBias(settled_after=settled_after),
        failures=Failures(counts=Counter(ledger.failures()), example=example),
    )
