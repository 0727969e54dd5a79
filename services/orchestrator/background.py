"""What goes on beside the stages of a run, as long as they last."""

import asyncio
from collections.abc import Coroutine

from services.orchestrator import replica_demand
from services.orchestrator.admission_window import AdmissionWindow, follow
from services.orchestrator.changes import Changes
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.fleet import Fleet
from services.orchestrator.peers import Peers
from services.orchestrator.progress import Progress
from services.orchestrator.push_record import follow_pushes
from services.orchestrator.room import Room
from services.orchestrator.schedule import Schedule
from services.orchestrator.scoring import Scorer
from services.orchestrator.timeline import Timeline
from services.protocol.orchestrator import RunConfig


class Background:
    """Loops that look after the fleet, scores, room, pushes and how much work there is."""

    def __init__(
        self,
        *,
        run: RunConfig,
        config: OrchestratorConfig,
        peers: Peers,
        fleet: Fleet,
        scorer: Scorer,
        room: Room,
        schedule: Schedule,
        window: AdmissionWindow,
        progress: Progress,
        changes: Changes,
        timeline: Timeline,
    ) -> None:
        self._run = run
        self._config = config
        self._peers = peers
        self._fleet = fleet
        self._scorer = scorer
        self._room = room
        self._schedule = schedule
        self._window = window
        self._progress = progress
        self._changes = changes
        self._timeline = timeline

    async def beside(self, stages: Coroutine[None, None, None]) -> None:
        """Run the stages to their end; a loop that breaks ends them with its error."""
        loops = {
            "fleet": self._fleet.watch(),
            "scorer": self._scorer.run(),
            "room": self._room.watch(),
            "demand": self._tell_demand(),
            "pushes": follow_pushes(self._peers.bus, self._fleet, self._timeline),
        }
        if self._run.schedule.adaptive:
            loops["adapt"] = self._adapt()
        background = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
        work = asyncio.create_task(stages, name="stages")
        try:
            await asyncio.wait({work, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done():
                    task.result()
            await work
        finally:
            for task in (work, *background):
                task.cancel()
            await asyncio.gather(work, *background, return_exceptions=True)

    async def _tell_demand(self) -> None:
        await replica_demand.follow(
            replica_demand.ReplicaDemand(batch_groups=self._run.batch_groups),
            idle=self._progress.idle,
            slots=lambda: self._schedule.slots,
            fleet=self._fleet,
            run_id=self._progress.run_id,
        )

    async def _adapt(self) -> None:
        await follow(
            self._window,
            load=lambda: self._peers.load(self._config),
            open_groups=lambda: self._schedule.open_groups,
            starving=lambda: self._progress.idle.trainer_waits_for == "rollout",
            run_id=self._progress.run_id,
            changed=self._changes.notify,
        )
