"""One run: its parts, and what it does."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any

from services.changes import Changes
from services.disk import free_bytes
from services.ledger.ledger import Ledger
from services.ledger.ledger_file import LedgerTaken
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.checks.run_check import deployment_facts, refuse
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import Peers, RunContext
from services.orchestrator.core.length_bias import SETTLED_BATCHES, LengthBias
from services.orchestrator.core.progress import Progress
from services.orchestrator.core.schedule import Schedule
from services.orchestrator.evaluation.evaluation import Evaluator
from services.orchestrator.evaluation.heldout import HeldOut
from services.orchestrator.failures import Failures
from services.orchestrator.fleet import Fleet
from services.orchestrator.lifecycle.ending import RunEnding
from services.orchestrator.loop.admission import Admission, AdmissionWindow
from services.orchestrator.loop.attempt import Attempts
from services.orchestrator.loop.checkpoints import Checkpoints
from services.orchestrator.loop.disk_guard import DiskGuard
from services.orchestrator.loop.groups import Groups
from services.orchestrator.loop.recovery import RunFailed, adopt, start_trainer
from services.orchestrator.loop.trainer_idle import TrainerIdle
from services.orchestrator.loop.training import TrainingLoop, TrainSteps
from services.orchestrator.observers.decision_log import DecisionLog
from services.orchestrator.observers.findings import findings
from services.orchestrator.observers.group_telemetry import GroupMetrics, GroupTraces
from services.orchestrator.observers.replica_demand import follow_demand
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.observers.timeline import follow_pushes
from services.orchestrator.observers.usage_record import follow_usage
from services.orchestrator.rollout.scoring import Scorer
from services.orchestrator.run_folder.run_directory import RunDirectory, run_log
from services.orchestrator.tasks.curriculum import PassedOver, PassRates
from services.orchestrator.tasks.prompts import PromptSource
from services.orchestrator.tasks.task_table import TaskTable
from services.orchestrator.trackers.tracker import Trackers
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import (
    Finding,
    LedgerCounts,
    RunConfig,
    RunState,
    RunStatus,
)
from services.protocol.run.profile import PROFILE_SPACE, Profile, ProfileOrder, ProfileRequest
from services.side_by_side import cancel, race

_log = Log("orchestrator")


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
        ledger, changes, self._tasks = Ledger(directory.ledger), Changes(), tasks
        self.progress = progress = _remembered(run_id, run, ledger, directory)
        progress.heldout_set = tasks.first_set
        fleet = Fleet(peers.bus, changes)
        self._context = context = RunContext(
            run=run,
            config=config,
            peers=peers,
            fleet=fleet,
            progress=progress,
            changes=changes,
            directory=directory,
            goes_on=self._goes_on,
        )
        # The book of sample groups, and its observers
        trackers = Trackers(run, run_id=run_id, run_dir=directory.path)
        self._record = record = RunRecord(context, ledger, trackers)
        traces, decisions = GroupTraces(run_id), DecisionLog(directory.decisions)
        schedule = Schedule(run.schedule, batch_groups=run.batch_groups, listener=decisions.hear)
        self._window = AdmissionWindow(batch_groups=run.batch_groups, bound=schedule.capacity)
        metrics, timeline, idle_times = GroupMetrics(run_id), record.timeline, progress.idle
        observers = (metrics, traces, timeline, idle_times, record, decisions, self._window)
        self._book = book = GroupBook(run_id, ledger, schedule, observers)
        # Rollouts, scores and evaluations
        self._sampler = sampler = peers.rollouts(run, config, run_id)
        self._scorer = scorer = Scorer(peers.reward, config)
        evaluator = Evaluator(context, sampler, scorer)
        self._heldout = HeldOut(context, tasks, evaluator=evaluator, record=record)
        # The training loop
        self._rates = rates = PassRates(directory.pass_rates)
        self._disk = DiskGuard(directory.path, config=config, progress=progress, changes=changes)
        idle = TrainerIdle(context, book)
        attempts = Attempts(context, tasks, book, sampler=sampler, scorer=scorer, traces=traces)
        self._teacher = attempts.teacher
        groups = Groups(context, tasks, book, attempts=attempts, record=record, rates=rates)
        self._passed = PassedOver(directory.passed_over)
        prompts = PromptSource(tasks.order(rates, self._passed))
        admission = Admission(
            context, book, groups, prompts=prompts, window=self._window, idle=idle
        )
        checkpoints = Checkpoints(context, ledger, disk=self._disk, timeline=timeline)
        self._steps = TrainSteps(
            context, book, traces=traces, idle=idle, record=record, checkpoints=checkpoints
        )
        self._loop = TrainingLoop(
            context, book, groups, admission=admission, steps=self._steps, heldout=self._heldout
        )
        self._ending = RunEnding(context, book, record)
        self._stop, self._keep_progress = asyncio.Event(), True
        self._counts, self._findings = LedgerCounts(), list[Finding]()

    @property
    def taken(self) -> bool:
        """Whether another orchestrator took the run over."""
        return self._book.ledger.taken

    def status(self) -> RunStatus:
        """The status of the run."""
        if self.progress.active:
            self._counts = self._book.ledger.counts()
            self._findings = findings(self._context.run, self._book.ledger)
            self.progress.tokens_sampled = self._book.ledger.tokens_sampled()
        live_replicas = len(self._context.fleet.leased)
        status = self.progress.status(ledger=self._counts, live_replicas=live_replicas)
        status.findings = status.summary.findings if status.summary else self._findings
        if self._context.run.schedule.adaptive:
            status.admission_window = self._window.size
        return status

    def pause(self, paused: bool = True) -> None:
        """Admit no sample group and begin no train step until `unpause`; rollouts end as usual.

        The next orchestrator goes on with a run as it was, paused or not.
        """
        self._book.ledger.note(paused=paused)
        self.progress.paused = paused
        RunMetrics.paused.set(float(paused), self._context.tags)
        self._context.changes.notify()

    def unpause(self) -> None:
        """End a pause."""
        self.pause(False)

    async def checkpoint(self) -> None:
        """Write a checkpoint after the train step in progress, unless the newest one is of it.

        Raises:
            NotReady: the trainer does not write one now.
        """
        timeout_s = self._context.config.stop_timeout_s
        try:
            async with asyncio.timeout(timeout_s), self._steps.lock:
                await self._ending.save()
        except TimeoutError:
            raise NotReady(f"no checkpoint in {timeout_s:g} s") from None
        if self.progress.saved_step < self.progress.step:
            raise NotReady(f"the checkpoint of step {self.progress.step} was not written")

    async def profile(self, order: ProfileOrder) -> Profile:
        """Have ranks of the trainer profile the next train steps.

        Raises:
            InvalidInput: there is no such rank, or no space for the traces.
            NotReady: the trainer holds no run now, or is profiling.
        """
        context, directory = self._context, self._context.directory
        free, needed = free_bytes(directory.path), PROFILE_SPACE * len(order.ranks)
        if free < needed:
            fix = f"{free >> 20} MiB are free, traces may need {needed >> 20}: make space."
            raise InvalidInput("run_dir", str(directory.path), fix)
        folder = directory.new_profile(self.progress.step + 1)
        request = ProfileRequest(
            run_id=self.progress.run_id, folder=str(folder), **order.model_dump()
        )
        await context.peers.trainer.profile(request)
        last_step = self.progress.step + order.steps
        return Profile(name=folder.name, folder=str(folder), last_step=last_step)

    def stop(self, *, keep_progress: bool = True) -> None:
        """Ask the run to end; `keep_progress` writes a checkpoint, so that nothing is lost.

        Without it the next orchestrator goes on with the run, as after a kill.
        """
        self._keep_progress = keep_progress
        self._stop.set()

    def _goes_on(self) -> bool:
        return not self._keep_progress or self._ending.is_taken()

    async def execute(self) -> None:
        """Run from start to end; ends in one of the three last states."""
        with run_log(self._context.directory.path, self.progress.run_id):
            self._context.directory.forget_ending()
            _log.info(
                "ledger_opened",
                run=self.progress.run_id,
                file_system=self._book.ledger.file_system.kind,
                journal_mode=self._book.ledger.journal_mode,
            )
            if self.progress.paused:
                RunMetrics.paused.set(1.0, self._context.tags)
            work = asyncio.create_task(self._work(), name="run")
            stop = asyncio.create_task(self._stop.wait(), name="run-stop")
            try:
                await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    await self._interrupt(work)
            finally:
                await cancel(work, stop)
                await self._ending.release_replicas()
            await self._ending.close_record()
            self._rates.close()
            self._passed.close()
            counts = await self._ending.close(*self._outcome(work))
            self._counts = counts or self._counts

    async def _interrupt(self, work: asyncio.Task[None]) -> None:
        """Let a train step in progress end, so that trainer and ledger agree, then cancel."""
        self.progress.detail = "stopping"
        try:
            async with asyncio.timeout(self._context.config.stop_timeout_s), self._steps.lock:
                work.cancel()
                if self._keep_progress:
                    await self._ending.save()
        except TimeoutError as error:
            self._ending.failed("checkpoint", error)
        work.cancel()

    def _outcome(self, work: asyncio.Task[None]) -> tuple[RunState, str]:
        if work.cancelled():
            return RunState.STOPPED, f"stopped at step {self.progress.step}; it can be resumed"
        error = work.exception()
        if error is None:
            return RunState.FINISHED, self.progress.detail
        if isinstance(error, RunFailed | NotReady | InvalidInput | LedgerTaken):
            return RunState.FAILED, str(error)
        return RunState.FAILED, self._ending.explain(error)

    async def _work(self) -> None:
        """Run the stages, and loops beside them; a loop that fails ends them with its error."""
        async with self._sampler, self._heldout, self._teacher or nullcontext():
            await race(self._loops() | {"stages": self._stages()})

    def _loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        context, schedule = self._context, self._book.schedule
        loops = {
            "fleet": context.fleet.watch(),
            "scorer": self._scorer.run(),
            "disk": self._disk.watch(self._book.ledger),
            "demand": follow_demand(context, lambda: schedule.slots),
            "usage": follow_usage(context, context.directory.usage),
            "pushes": follow_pushes(context.peers.bus, context.fleet, self._record.timeline),
        }
        if context.run.schedule.adaptive:
            loops["window"] = self._window.follow(context, schedule)
        return loops

    async def _stages(self) -> None:
        """Start, first evaluation, training, last evaluation; `Progress` shows where it is.

        Raises:
            RunFailed: with the reason for people.
            NotReady: a service was away for longer than its deadline.
            InvalidInput: the services do not fit the run.
        """
        context, progress, heldout = self._context, self.progress, self._heldout
        run, config, fleet = context.run, context.config, context.fleet
        progress.enter(RunState.STARTING, "waiting for the weight bus")
        await fleet.bound_lag(run.schedule.max_staleness, config.replicas_timeout_s)
        progress.detail = "waiting for the trainer"
        version = adopt(context, self._book, await start_trainer(context))
        progress.detail = f"waiting for rollout servers to hold version {version}"
        await fleet.wait_settled(version, config.replicas_timeout_s)
        # Of services that were away when the run was asked for.
        peers, resumed = context.peers, progress.step > 0
        facts = await deployment_facts(
            config, peers.bus, peers.trainer, peers.load(config), resumed=resumed
        )
        refuse(run, self._tasks, facts)
        if self._teacher is not None:
            progress.detail = "waiting for the teacher"
            await self._teacher.check()
        if not progress.step:
            await heldout.measure("before training", again=False)
        progress.enter(RunState.TRAINING, "admitting sample groups")
        progress.measure_rate()
        ending = await self._loop.run()
        assert progress.policy_version is not None
        await fleet.wait_settled(progress.policy_version, config.replicas_timeout_s)
        # Without a train step the weights are those of the first evaluation.
        if progress.step:
            await heldout.measure("after training")
            if not heldout.measured:
                problem = (progress.heldout_problem or "").removeprefix("after training: ")
                ending += f"; held-out pass rate not measured after training: {problem}"
        await self._disk.summary_fits(self._book.ledger)
        progress.detail = ending


def _remembered(run_id: str, run: RunConfig, ledger: Ledger, directory: RunDirectory) -> Progress:
    """The progress of the run at its last end; empty for a new run."""
    settled_after = SETTLED_BATCHES * run.batch_groups * run.group_size
    example = ledger.fact("failure_example", "")
    return Progress(
        run_id=run_id,
        run_dir=str(directory.path),
        steps=run.steps,
        tokens_sampled=ledger.tokens_sampled(),
        tokens_evaluated=ledger.tokens_evaluated(),
        recoveries=ledger.fact("recoveries", 0),
        elapsed_before_s=ledger.fact("elapsed_s", 0.0),
        paused=ledger.fact("paused", False),
        lengths=LengthBias(settled_after=settled_after),
        failures=Failures(counts=Counter(ledger.reasons("failed")), example=example),
    )
