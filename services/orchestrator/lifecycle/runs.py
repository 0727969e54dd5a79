"""All runs of this orchestrator, of which one at a time is active."""

import asyncio
import builtins
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine

from services.ledger.writer_lease import LEASE_S, LedgerHeld
from services.observability.log import Log
from services.orchestrator.checks.run_check import (
    check_environments,
    check_paths,
    deployment_facts,
    refuse,
)
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.context import Peers
from services.orchestrator.lifecycle.open_run import OpenRun, PendingResume
from services.orchestrator.lifecycle.run import Run
from services.orchestrator.loop.recovery import RunFailed
from services.orchestrator.run_folder.earlier_run import EarlierRun
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunRequest, RunState, RunStatus

_log = Log("orchestrator")
_MOST_ENDED = 1000
"""Runs that are over and still listed; their folders stay."""


class RunActive(RuntimeError):
    """Another run uses the cluster."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            "Another run is in progress; this cluster trains one at a time. "
            f"Wait for it or end it with `millrace stop {run_id}`."
        )
        self.run_id = run_id


class NoSuchRun(KeyError):
    """This orchestrator knows no run of that id."""


class EndedRun:
    """A run that is over."""

    def __init__(self, final: RunStatus) -> None:
        self._final = final

    def status(self) -> RunStatus:
        """Its last status."""
        return self._final


class Runs:
    """Starts, lists and stops runs, and owns their tasks.

    Args:
        config: of the service.
        peers: finds the other services for a run.
        open_run: where the open run is noted for the next orchestrator; None: nowhere.
    """

    def __init__(
        self,
        config: OrchestratorConfig,
        peers: Callable[[], Peers],
        open_run: OpenRun | None = None,
    ) -> None:
        self._config = config
        self._peers = peers
        self._open_run = open_run
        self._ended: dict[str, EndedRun] = {}
        self._active: Run | PendingResume | None = None
        self._life: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closing = False

    async def start(self, request: RunRequest) -> RunStatus:
        """Start a run, or resume an earlier one; nothing is left behind on an error.

        Raises:
            RunActive: another run is active.
            InvalidInput: the request cannot be used.
        """
        async with self._starting:
            self._refuse_second()
            started = await self._begin(request)
            if started.progress.paused:  # before it was resumed, and now a client wants it to run
                started.unpause()
            if self._open_run is not None:
                await self._open_run.begin(request, started.progress.run_id)
            return started.status()

    async def resume_open_run(self) -> None:
        """Resume the run that the orchestrator before this one left open, if there is one.

        While its disk is full that cannot be: the run waits, as one in progress would.
        """
        async with self._starting:
            try:
                noted = None if self._open_run is None else await self._open_run.noted()
                if noted is None:
                    return
                pending = PendingResume(noted, self._config)
                has_space = await pending.has_space()
            except Exception as error:  # noqa: BLE001  a run that cannot be resumed must not keep others from starting
                _not_resumed(None, error)
                return
            if has_space:
                await self._resume()
            else:
                self._enter(pending, self._wait_for_space(pending))

    async def _wait_for_space(self, pending: PendingResume) -> None:
        assert self._open_run is not None
        problem = ""
        try:
            await pending.wait()
        except RunFailed as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  the edge of its life
            problem = _not_resumed(None, error)
        async with self._starting:
            if not (problem or pending.stopped):
                problem = await self._resume()
                if not problem:
                    if pending.stopped and self._active is not None:  # meanwhile
                        self._active.stop(keep_progress=not self._closing)
                    return
            elif not self._closing:
                await self._open_run.end()
            stopped = "stopped while its disk was full; it can be resumed"
            state = RunState.FAILED if problem else RunState.STOPPED
            pending.end(state, problem or stopped)

    async def _resume(self) -> str:
        """Resume the open run; returns why not, if that cannot be."""
        assert self._open_run is not None
        request = None
        try:
            request = await self._open_run.again()
            if request is None:
                return "it cannot be resumed; the orchestrator's log says why"
            try:
                await self._begin(request)
            except LedgerHeld:  # by an orchestrator whose machine may have died just now
                await asyncio.sleep(LEASE_S)
                await self._begin(request)
        except Exception as error:  # noqa: BLE001  a run that cannot be resumed must not keep others from starting
            return _not_resumed(request, error)
        _log.info("run_resumed", run=request.resume)
        return ""

    async def _begin(self, request: RunRequest) -> Run:
        run = request.config
        check_paths(run)
        earlier = await asyncio.to_thread(EarlierRun.of, request)
        tasks = await asyncio.to_thread(TaskTable, run, quote=False)
        peers = self._peers()
        load, resumed = peers.load(self._config), request.resume is not None
        facts = await deployment_facts(
            self._config, peers.bus, peers.trainer, load, resumed=resumed
        )
        refuse(run, tasks, facts)
        check_environments(run)
        directory = await asyncio.to_thread(_folder, request, earlier)
        started = self._make(request, tasks, peers, directory)
        self._ended.pop(started.progress.run_id, None)
        self._enter(started, self._live(started))
        return started

    def _enter(self, run: Run | PendingResume, life: Coroutine[None, None, None]) -> None:
        self._active = run
        self._life = asyncio.create_task(life, name=run.progress.run_id)
        self._life.add_done_callback(lambda _: self._retire(run))

    async def _live(self, run: Run) -> None:
        await run.execute()
        if self._open_run is None or self._closing or run.taken:
            return  # a run that a shutdown has cut off is still open, for the next orchestrator
        # The note of this run may be being written still, and that of the next one may be there.
        async with self._starting:
            if self._active in (run, None):
                await self._open_run.end()

    def _refuse_second(self) -> None:
        if self._active is not None and not self._active.progress.active:
            self._retire(self._active)  # it shows its end, which its task has yet to return from
        if self._active is not None:
            raise RunActive(self._active.progress.run_id)

    def _make(
        self, request: RunRequest, tasks: TaskTable, peers: Peers, directory: RunDirectory
    ) -> Run:
        run = request.config
        try:
            return Run(
                run_id=directory.path.name,
                run=run,
                config=self._config,
                tasks=tasks,
                peers=peers,
                directory=directory,
            )
        except (InvalidInput, OSError, sqlite3.Error) as error:
            if request.resume is None:
                directory.remove()
            if isinstance(error, InvalidInput):
                raise
            fix = f"The run's ledger cannot be opened there: {error}."
            raise InvalidInput("run_root", run.run_root, fix) from None

    def _retire(self, run: Run | PendingResume) -> None:
        """Keep the status of a run that ended, and free its tasks and peers."""
        if self._active is not run:
            return
        self._active = self._life = None
        self._ended[run.progress.run_id] = EndedRun(run.status())
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def list(self) -> builtins.list[RunStatus]:
        """This orchestrator's runs, oldest first; of ended runs the newest 1,000."""
        active = [] if self._active is None else [self._active.status()]
        return [run.status() for run in self._ended.values()] + active

    def get(self, run_id: str) -> Run | PendingResume | EndedRun:
        """A run.

        Raises:
            NoSuchRun: there is none of that id.
        """
        if self._active is not None and self._active.progress.run_id == run_id:
            return self._active
        if run_id not in self._ended:
            raise NoSuchRun(run_id)
        return self._ended[run_id]

    async def stop(self, run_id: str) -> RunStatus:
        """End a run and wait until it has ended, within its own deadline.

        Raises:
            NoSuchRun: there is none of that id.
        """
        run = self.get(run_id)
        if not isinstance(run, EndedRun):
            run.stop()
        return await self.ended(run_id)

    def active(self, run_id: str) -> Run:
        """A run that is not over.

        Raises:
            NoSuchRun: there is none of that id.
            InvalidInput: it is over.
            NotReady: it has yet to go on.
        """
        run = self.get(run_id)
        if isinstance(run, PendingResume):
            raise NotReady(run.progress.disk_full)
        if not isinstance(run, Run) or not run.progress.active:
            raise InvalidInput("run_id", run_id, "This run is over; `millrace run --resume`.")
        return run

    async def ended(self, run_id: str) -> RunStatus:
        """Wait until a run has ended; every stage of it has its own deadline.

        Raises:
            NoSuchRun: there is none of that id.
        """
        while not isinstance(run := self.get(run_id), EndedRun) and self._life is not None:
            await asyncio.wait({self._life})  # a run that returned lives on in another
        return run.status()

    async def close(self) -> None:
        """End everything at once, for shutdown; the next orchestrator resumes the run."""
        self._closing = True
        while self._active is not None and self._life is not None:
            self._active.stop(keep_progress=False)
            await asyncio.wait({self._life})


def _not_resumed(request: RunRequest | None, error: Exception) -> str:
    why = f"{type(error).__name__}: {error}"
    _log.warning("run_not_resumed", run=None if request is None else request.resume, why=why)
    return why


def _folder(request: RunRequest, earlier: EarlierRun | None) -> RunDirectory:
    """The folder of the run that a request starts, resumes or branches off."""
    run = request.config
    if earlier is None:
        return RunDirectory.create(run, _new_id(run.name))
    if request.branch is None:
        return earlier.resume(run)
    return earlier.branch(run, _new_id(run.name))


def _new_id(name: str) -> str:
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
