"""What goes on beside the stages of a run, as long as they last."""

import asyncio
from collections.abc import Coroutine

from services.orchestrator.core.context import RunContext
from services.orchestrator.core.schedule import Schedule
from services.orchestrator.loop.admission import AdmissionWindow, follow
from services.orchestrator.loop.disk_guard import Room
from services.orchestrator.observers import replica_demand
from services.orchestrator.observers.push_record import follow_pushes
from services.orchestrator.observers.timeline import Timeline
from services.orchestrator.rollout.scoring import Scorer


class Background:
    """Loops that look after the fleet, scores, room, pushes and how much work there is."""

    def __init__(
        self,
        context: RunContext,
        schedule: Schedule,
        *,
        scorer: Scorer,
        room: Room,
        window: AdmissionWindow,
        timeline: Timeline,
    ) -> None:
        self._context, self._schedule = context, schedule
        self._scorer, self._room, self._window, self._timeline = scorer, room, window, timeline

    async def beside(self, stages: Coroutine[None, None, None]) -> None:
        """Run the stages to their end; a loop that breaks ends them with its error."""
        loops = {
            "fleet": self._context.fleet.watch(),
            "scorer": self._scorer.run(),
            "room": self._room.watch(),
            "demand": self._tell_demand(),
            "pushes": follow_pushes(self._context.peers.bus, self._context.fleet, self._timeline),
        }
        if self._context.run.schedule.adaptive:
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
            replica_demand.ReplicaDemand(batch_groups=self._context.run.batch_groups),
            idle=self._context.progress.idle,
            slots=lambda: self._schedule.slots,
            fleet=self._context.fleet,
            run_id=self._context.run_id,
        )

    async def _adapt(self) -> None:
        await follow(
            self._window,
            load=lambda: self._context.peers.load(self._context.config),
            open_groups=lambda: self._schedule.open_groups,
            starving=lambda: self._context.progress.idle.trainer_waits_for == "rollout",
            run_id=self._context.run_id,
            changed=self._context.changes.notify,
        )
