"""One run from its first evaluation to its summary; it owns every task of it."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from services.observability.metrics import RunMetrics
from services.orchestrator import replica_demand
from services.orchestrator.admission_window import AdmissionWindow, follow
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
from services.orchestrator.push_record import follow_pushes
from services.orchestrator.record import RunRecord
from services.orchestrator.recovery import RunFailed, start_trainer
from services.orchestrator.room import Room
from services.orchestrator.run_check import refuse
from services.orchestrator.run_directory import RunDirectory
from services.orchestrator.run_log import run_log
from services.orchestrator.schedule import Schedule
from services.orchestrator.scoring import Scorer
from services.orchestrator.task_table import TaskTable
from services.orchestrator.trackers.trackers import Trackers
from services.orchestrator.training import TrainingLoop
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.orchestrator import LedgerCounts, RunConfig, RunState, RunStatus
from services.protocol.trainer import RunStart, TrainerState


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
        self._room = Room(
            directory.path,
            ledger=self._ledger,
            config=config,
            progress=self.progress,
            changes=self._changes,
        )
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
        self._start = _trainer_start(run_id, run, directory)
        self._checkpoints = Checkpoints(
            peers.trainer,
            run=run,
            ledger=self._ledger,
            progress=self.progress,
            room=self._room,
            timeline=self._record.timeline,
        )
        self._heldout = HeldOut(
            tasks,
            run=run,
            evaluator=Evaluator(
                run=run,
                run_id=run_id,
                sampler=self._client,
                scorer=self._scorer,
                concurrency=config.evaluation_concurrency,
            ),
            progress=self.progress,
            record=self._record,
        )
        self._loop = self._training_loop()
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
        self._record.close()
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
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            await stack.enter_async_context(self._heldout)
            background = [
                asyncio.create_task(self._fleet.watch(), name="fleet"),
                asyncio.create_task(self._scorer.run(), name="scorer"),
                asyncio.create_task(self._room.watch(), name="room"),
            ]
            background.append(asyncio.create_task(self._tell_demand(), name="demand"))
            pushes = follow_pushes(self._peers.bus, self._fleet, self._record.timeline)
            background.append(asyncio.create_task(pushes, name="pushes"))
            if self._run.schedule.adaptive:
                background.append(asyncio.create_task(self._adapt(), name="adapt"))
            stages = asyncio.create_task(self._stages(), name="stages")
            try:
                await asyncio.wait({stages, *background}, return_when=asyncio.FIRST_COMPLETED)
                for task in background:
                    if task.done():
                        task.result()
                await stages
            finally:
                for task in (stages, *background):
                    task.cancel()
                await asyncio.gather(stages, *background, return_exceptions=True)

    async def _tell_demand(self) -> None:
        await replica_demand.follow(
            replica_demand.ReplicaDemand(batch_groups=self._run.batch_groups),
            idle=self.progress.idle,
            slots=lambda: self._schedule.slots,
            fleet=self._fleet,
            run_id=self.progress.run_id,
        )

    async def _adapt(self) -> None:
        await follow(
            self._window,
            load=lambda: self._peers.load(self._config),
            open_groups=lambda: self._schedule.open_groups,
            starving=lambda: self.progress.idle.trainer_waits_for == "rollout",
            run_id=self.progress.run_id,
            changed=self._changes.notify,
        )

    async def _stages(self) -> None:
        progress = self.progress
        progress.enter(RunState.STARTING, "waiting for the weight bus")
        bound, patience_s = self._run.schedule.max_staleness, self._config.replicas_timeout_s
        await self._fleet.bound_lag(bound, patience_s)
        progress.detail = "waiting for the trainer"
        state = await start_trainer(self._peers.trainer, self._start, self._config, progress)
        version = self._adopt(state)
        progress.detail = f"waiting for rollout servers to hold version {version}"
        await self._fleet.wait_settled(version, self._config.replicas_timeout_s)
        # Of services that were away when the run was asked for.
        around = await self._peers.surroundings(self._config)
        refuse(self._run, self._tasks, around.of_a_run_that_goes_on() if progress.step else around)
        if not progress.step and not progress.evaluations:
            await self._heldout.measure("before training")
        progress.enter(RunState.TRAINING, "admitting sample groups")
        progress.measure_rate()
        self._decisions.open(
            {
                "schedule": self._run.schedule.model_dump(mode="json"),
                "batch_groups": self._run.batch_groups,
            }
        )
        await self._loop.run(version)
        ending = "all steps done"
        if progress.step < self._run.steps:
            ending = progress.detail
            await self._checkpoints.last()
        assert progress.policy_version is not None
        await self._fleet.wait_settled(progress.policy_version, self._config.replicas_timeout_s)
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
        keep = self._ledger.finished() if comparable else ()
        self._ledger.rollback(state.step, keep=keep)
        if state.frontier is not None and not self._ledger.reaches(state.frontier):
            raise RunFailed(
                f"the checkpoint of step {state.step} was written when the ledger had "
                f"{state.frontier}, the ledger has {self._ledger.frontier()}: they are not of the "
                "same run, or one of them is an older copy"
            )
        self._record.rolled_back(state.step)
        self._ledger.note(policy_version=state.policy_version)
        progress = self.progress
        progress.step = progress.saved_step = state.step
        progress.policy_version = state.policy_version
        return state.policy_version


def _trainer_start(run_id: str, run: RunConfig, directory: RunDirectory) -> RunStart:
    return RunStart(
        run_id=run_id,
        checkpoint_dir=str(directory.checkpoints),
        algorithm=run.algorithm,
        temperature=run.sampling.temperature,
        seed=run.seed,
    )
