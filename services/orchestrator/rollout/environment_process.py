"""The orchestrator's end of the process in which a user's environment runs."""

import asyncio
import itertools
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from services.observability.log import Log
from services.orchestrator.rollout.rollout import RolloutFailed
from services.protocol.errors import InvalidInput
from services.protocol.session import SessionSummary
from services.side_by_side import cancel

_START_S = 300.0
_GRACE_S = 5.0
_LONGEST_REPLY = 16 * 1024 * 1024  # bytes
_log = Log("orchestrator")


class EnvironmentProcess:
    """Runs episodes in a worker, which is replaced when it dies or blocks."""

    live = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: asyncio.subprocess.Process | None = None
        self._worker = 0
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._starting = asyncio.Lock()

    @property
    def worker(self) -> int:
        """The process that runs episodes now; 0 before there is one."""
        return self._worker

    async def start(self) -> None:
        """Start the process and import the environment, unless it runs already.

        Raises:
            InvalidInput: the environment cannot be imported.
        """
        async with self._starting:
            if self._process is None:
                await self._start()

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.orchestrator.rollout.environment_host", self._name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_REPLY,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _START_S)
            answer = json.loads(line) if line else {"error": "its process died"}
        except TimeoutError:
            answer = {"error": f"importing it took more than {_START_S:g} s"}
        except BaseException:
            await _end(process)
            raise
        if "error" in answer:
            await _end(process)
            fix = f"It cannot be imported: {answer['error']}."
            raise InvalidInput("environment", self._name, fix)
        self._process, self._worker = process, int(answer["worker"])
        self._reader = asyncio.create_task(self._read(process), name="environment")

    def offer(self, episode: dict[str, Any], key: str) -> None:
        """Its sessions are its own."""

    @staticmethod
    def given_up(seen: SessionSummary | None) -> str:
        """See `EpisodePlayer`."""
        return "environment_stalled"

    async def run(self, episode: dict[str, Any]) -> dict[str, Any]:
        """One episode's outcome; see `EpisodePlayer`.

        It has no deadline; a cancelled call ends the episode.

        Raises:
            RolloutFailed: it has neither.
        """
        try:
            await self.start()
        except InvalidInput as error:
            raise RolloutFailed("environment_died", str(error)) from None
        process, number = self._process, next(self._numbers)
        if process is None:
            raise RolloutFailed("environment_died", "its process ended as it began")
        outcome = self._open[number] = asyncio.get_running_loop().create_future()
        _send(process, {"id": number, "episode": episode})
        try:
            answer = await asyncio.shield(outcome)
        finally:
            if not outcome.done():
                self._give_up(process, self._worker, number)
        if "reason" in answer:
            raise RolloutFailed(answer["reason"], answer["error"])
        return answer

    def _give_up(self, process: asyncio.subprocess.Process, worker: int, number: int) -> None:
        """Cancel an episode; a worker that does not end it in time is blocked and replaced."""
        _send(process, {"id": number})
        asyncio.get_running_loop().call_later(_GRACE_S, self._kill_if_open, worker, number)

    def _kill_if_open(self, worker: int, number: int) -> None:
        if number in self._open and worker == self._worker:
            _log.warning("environment_killed", environment=self._name, episodes=len(self._open))
            _kill(worker)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read outcomes until the process ends, and resolve their futures."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if "worker" in answer:
                    self._lost()
                    self._worker = answer["worker"]
                    continue
                outcome = self._open.pop(answer["id"], None)
                if outcome is not None and not outcome.done():
                    outcome.set_result(answer)
        except ValueError as error:  # a line that is too long, or none of ours
            _log.warning("environment_garbled", environment=self._name, error=str(error))
        finally:
            self._process = None
            self._lost()
            _kill(self._worker)
            await _end(process)

    def _lost(self) -> None:
        """The worker died, and with it every open episode."""
        died = {"reason": "environment_died", "error": "the environment's process ended"}
        for outcome in self._open.values():
            if not outcome.done():
                outcome.set_result(died)
        self._open.clear()

    async def close(self) -> None:
        """End the process and all processes that it started."""
        if self._reader is not None:
            await cancel(self._reader)


def _send(process: asyncio.subprocess.Process, message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    _kill(process.pid)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
