"""All runs of this orchestrator, of which one at a time is active."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.run import Peers, Run
from services.orchestrator.run_directory import RunDirectory
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.orchestrator import RunConfig, RunRequest, RunStatus
from services.protocol.task import load_tasks

_BUS_ANSWER_S = 1.0


class RunActive(RuntimeError):
    """Another run uses the cluster."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id} is active and the cluster serves one run at a time: "
            f"wait for it or end it with `millrace stop {run_id}`."
        )
        self.run_id = run_id


class NoSuchRun(KeyError):
    """This orchestrator knows no run of that id."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    run: Run
    life: asyncio.Task[None]


class Runs:
    """Starts, lists and stops runs, and owns their tasks."""

    def __init__(self, config: OrchestratorConfig, peers: Callable[[], Peers]) -> None:
        self._config = config
        self._peers = peers
        self._runs: dict[str, _Entry] = {}
        self._starting = asyncio.Lock()

    async def start(self, request: RunRequest) -> RunStatus:
        """Start a run, or go on with an earlier one; nothing is left behind on an error.

        Raises:
            RunActive: another run is active.
            InvalidInput: the request cannot be used.
        """
        async with self._starting:
            self._refuse_second()
            run = request.config
            _check_paths(run)
            tasks = await asyncio.to_thread(load_tasks, run.task_file)
            peers = self._peers()
            await _check_model(run, peers)
            if request.resume is None:
                run_id = _new_id(run.name)
                directory = RunDirectory.create(run, run_id)
            else:
                run_id = request.resume
                directory = RunDirectory.reopen(run, run_id)
            started = Run(
                run_id=run_id,
                run=run,
                config=self._config,
                tasks=tasks,
                peers=peers,
                directory=directory,
            )
            life = asyncio.create_task(started.execute(), name=run_id)
            self._runs[run_id] = _Entry(run=started, life=life)
            return started.status()

    def _refuse_second(self) -> None:
        for run_id, entry in self._runs.items():
            if not entry.life.done():
                raise RunActive(run_id)

    def list(self) -> list[RunStatus]:
        """Every run of this orchestrator's life, oldest first."""
        return [entry.run.status() for entry in self._runs.values()]

    def get(self, run_id: str) -> Run:
        """A run.

        Raises:
            NoSuchRun: there is none of that id.
        """
        if run_id not in self._runs:
            raise NoSuchRun(run_id)
        return self._runs[run_id].run

    async def stop(self, run_id: str) -> RunStatus:
        """End a run and wait until it has ended, within its own deadline.

        Raises:
            NoSuchRun: there is none of that id.
        """
        self.get(run_id).stop()
        return await self.ended(run_id)

    async def ended(self, run_id: str) -> RunStatus:
        """Wait until a run has ended; every stage of it has its own deadline.

        Raises:
            NoSuchRun: there is none of that id.
        """
        run = self.get(run_id)
        await asyncio.shield(self._runs[run_id].life)
        return run.status()

    async def close(self) -> None:
        """End everything at once, for shutdown: the runs can be resumed later."""
        for entry in self._runs.values():
            entry.run.stop(keep_progress=False)
        lives = [entry.life for entry in self._runs.values()]
        await asyncio.gather(*lives, return_exceptions=True)


def _new_id(name: str) -> str:
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _check_paths(run: RunConfig) -> None:
    for field in ("task_file", "run_root"):
        value = getattr(run, field)
        if not Path(value).is_absolute():
            fix = "Send an absolute path: the service does not know the run file's folder."
            raise InvalidInput(field, value, fix)


async def _check_model(run: RunConfig, peers: Peers) -> None:
    """Refuse a model that no rollout server serves, where servers are known already."""
    try:
        table = await peers.bus.watch(-1, _BUS_ANSWER_S)
    except NotReady:
        return  # The run itself waits for the cluster, with a deadline.
    served = sorted({member.model for member in table.members})
    if served and run.model not in served:
        raise InvalidInput("model", run.model, f"The rollout servers serve {', '.join(served)}.")
