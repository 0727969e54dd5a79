"""One run from its first evaluation to its summary; it owns every task of it."""

import asyncio
from collections import Counter

from services.observability.metrics import RunMetrics
from services.orchestrator.admission_window import AdmissionWindow
from services.orchestrator.background import Background
from services.orchestrator.changes import Changes
from services.orchestrator.checkpoints import Checkpoints
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.curriculum import PassRates
from services.orchestrator.decisions import DecisionLog
from services.orchestrator.ending import RunEnding
from services.orchestrator.evaluation import Evaluator
from services.orchestrator.failures import Failures
from services.orchestrator.fleet import Fleet
from services.orchestrator.groups import Groups
from services.orchestrator.heldout import HeldOut
from services.orchestrator.ledger import Ledger
from services.orchestrator.length_bias import SETTLED_BATCHES, LengthBias
from services.orchestrator.peers import Peers
from services.orchestrator.progress import Progress
from services.orchestrator.record import RunRecord
from services.orchestrator.recovery import RunFailed
from services.orchestrator.room import Room
from services.orchestrator.run_directory import RunDirectory
from services.orchestrator.run_disk import RunDisk
from services.orchestrator.run_log import run_log
from services.orchestrator.schedule import Schedule
from services.orchestrator.scoring import Scorer
from services.orchestrator.stages import Stages
from services.orchestrator.task_table import TaskTable
from services.orchestrator.trackers.trackers import Trackers
from services.orchestrator.training import TrainingLoop
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.orchestrator import LedgerCounts, RunConfig, RunState, RunStatus
from services.protocol.trainer import RunStart


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
        self._run = run
        self._config = config
        self._peers = peers
        self._directory = directory
        self._tasks = tasks
        self._ledger = Ledger(directory.ledger)
        self.progress = self._remembered(run_id)
        self._decisions = DecisionLog(directory.decisions)
        self._changes = Changes()
        disk = RunDisk(directory.path, config=config, progress=self.progress, changes=self._changes)
        self._room = Room(disk, ledger=self._ledger, changes=self._changes)
        self._fleet = Fleet(peers.bus, self._changes)
        self._scorer = Scorer(peers.reward, config)
        self._client = peers.rollouts(run, config, run_id)
        trackers = Trackers(run, run_id=run_id, run_dir=directory.path)
        self._record = RunRecord(
            directory=directory,
            ledger=self._ledger,
            progress=self.progress,
            samples=config.sample_trajectories,
            trackers=trackers,
        )
        self._start = self._trainer_start()
        self._heldout = self._held_out_sets()
        self._loop = self._training_loop()
        self._stages = self._all_stages()
        self._background = self._loops_beside()
        self._ending = RunEnding(
            trainer=peers.trainer,
            fleet=self._fleet,
            ledger=self._ledger,
            record=self._record,
            directory=directory,
            progress=self.progress,
            trackers=trackers,
        )
        self._stop = asyncio.Event()
        self._keep_progress = True
        self._counts = LedgerCounts()

    def _remembered(self, run_id: str) -> Progress:
        """Where the run was when it ended last; a new run remembers nothing."""
        fact = self._ledger.fact
        return Progress(
            run_id=run_id,
            run_dir=str(self._directory.path),
            steps=self._run.steps,
            heldout_set=self._tasks.first_set,
            tokens=fact("tokens", 0),
            recoveries=fact("recoveries", 0),
            elapsed_before_s=fact("elapsed_s", 0.0),
            lengths=LengthBias(
                settled_after=SETTLED_BATCHES * self._run.batch_groups * self._run.group_size
            ),
            failures=Failures(
                counts=Counter(self._ledger.failures()), example=fact("failure_example", "")
            ),
        )

    def _trainer_start(self) -> RunStart:
        return RunStart(
            run_id=self.progress.run_id,
            checkpoint_dir=str(self._directory.checkpoints),
            algorithm=self._run.algorithm,
            temperature=self._run.sampling.temperature,
            seed=self._run.seed,
        )

    def _loops_beside(self) -> Background:
        return Background(
            run=self._run,
            config=self._config,
            peers=self._peers,
            fleet=self._fleet,
            scorer=self._scorer,
            room=self._room,
            schedule=self._schedule,
            window=self._window,
            progress=self.progress,
            changes=self._changes,
            timeline=self._record.timeline,
        )

    def _held_out_sets(self) -> HeldOut:
        evaluator = Evaluator(
            run=self._run,
            run_id=self.progress.run_id,
            sampler=self._client,
            scorer=self._scorer,
            concurrency=self._config.evaluation_concurrency,
        )
        return HeldOut(
            self._tasks,
            run=self._run,
            evaluator=evaluator,
            progress=self.progress,
            record=self._record,
        )

    def _all_stages(self) -> Stages:
        return Stages(
            run=self._run,
            config=self._config,
            tasks=self._tasks,
            peers=self._peers,
            start=self._start,
            ledger=self._ledger,
            loop=self._loop,
            heldout=self._heldout,
            fleet=self._fleet,
            progress=self.progress,
            record=self._record,
            decisions=self._decisions,
            checkpoints=self._checkpoints,
            room=self._room,
        )

    def _training_loop(self) -> TrainingLoop:
        schedule = self._schedule = Schedule(
            self._run.schedule,
            batch_groups=self._run.batch_groups,
            listener=self._decisions.hear,
        )
        self._window = AdmissionWindow(batch_groups=self._run.batch_groups, bound=schedule.capacity)
        rates = self._rates = PassRates(self._directory.pass_rates)
        groups = Groups(
            run=self._run,
            config=self._config,
            tasks=self._tasks,
            ledger=self._ledger,
            schedule=schedule,
            sampler=self._client,
            scorer=self._scorer,
            fleet=self._fleet,
            progress=self.progress,
            changes=self._changes,
            record=self._record,
            rates=rates,
        )
        self._checkpoints = Checkpoints(
            self._peers.trainer,
            run=self._run,
            ledger=self._ledger,
            progress=self.progress,
            room=self._room,
            timeline=self._record.timeline,
        )
        return TrainingLoop(
            run=self._run,
            config=self._config,
            task_ids=self._tasks.train,
            prompts=self._tasks.order(rates),
            trainer=self._peers.trainer,
            start=self._start,
            ledger=self._ledger,
            schedule=schedule,
            groups=groups,
            fleet=self._fleet,
            progress=self.progress,
            changes=self._changes,
            record=self._record,
            window=self._window,
            checkpoints=self._checkpoints,
            after_step=self._heldout.start_due,
        )

    def status(self) -> RunStatus:
        """Where the run is."""
        if self.progress.active:
            self._counts = self._ledger.counts()
        status = self.progress.status(ledger=self._counts, live_replicas=len(self._fleet.leased))
        if self._run.schedule.adaptive:
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
        RunMetrics.paused.set(float(paused), self._record.tags)
        self._changes.notify()

    async def checkpoint(self) -> None:
        """Write a checkpoint after the train step in progress, unless the newest one is of it.

        Raises:
            NotReady: the trainer does not write one now.
        """
        try:
            async with asyncio.timeout(self._config.stop_timeout_s), self._loop.stepping:
                await self._ending.save()
        except TimeoutError:
            raise NotReady(f"no checkpoint in {self._config.stop_timeout_s:g} s") from None
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
        counts = await self._ending.close(*self._outcome(work), seed=self._run.seed)
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
            async with asyncio.timeout(self._config.stop_timeout_s):
                async with self._loop.stepping:
                    work.cancel()
                    if self._keep_progress:
                        await self._ending.save()
        except TimeoutError as error:
            self._ending.failed("checkpoint", error)
        work.cancel()

    async def _work(self) -> None:
        async with self._client, self._heldout:
            await self._background.beside(self._stages.run())
