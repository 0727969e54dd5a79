"""An agent by its command line, which plays tasks as `millrace agent-run` has it play them."""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from millrace_tools.agents.episode import Episode
from millrace_tools.agents.work import Work
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.outside_agents import OutsideAgents
from services.orchestrator.rollout.rollout import RolloutFailed
from services.protocol.reward.grader import AnyGrader
from services.protocol.router import SESSION_HEADER


class AgentPlayer:
    """Starts the program once for each episode.

    Args:
        command: the program and its arguments, see `Episode`.
        at_once: programs side by side.
        timeout_s: longest episode.
        graders: of which the program may choose one.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        at_once: int,
        timeout_s: float,
        graders: Mapping[str, AnyGrader],
    ) -> None:
        self._command, self._timeout_s = command, timeout_s
        self._offers = OutsideAgents(OrchestratorConfig(), "audit", graders)
        self._threads = ThreadPoolExecutor(at_once, "agent")
        self._folder = Path(tempfile.mkdtemp(prefix="millrace-audit-"))

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """One episode's `reward`, or `text` and name of the `grader`; empty: the program says none
        of them.

        Raises:
            RolloutFailed: the program failed.
        """
        session = order["session"][SESSION_HEADER]
        offer = self._offers.offer(order, session)
        work = Work(session, offer.task, offer.model, offer.graders)
        folder = self._folder / session
        episode = Episode(work, self._command, url=order["url"], folder=folder)
        try:
            loop = asyncio.get_running_loop()
            ending = await loop.run_in_executor(self._threads, episode.play, self._timeout_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if "failure" in ending:
            raise RolloutFailed("agent_failed", ending["failure"])
        return ending

    def close(self) -> None:
        """Wait for programs that still run, none longer than its time limit."""
        self._threads.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
