"""Bringing the trainer back, and the run with it."""

import asyncio
import time

from services.observability.log import Log
from services.orchestrator.config import OrchestratorConfig
from services.protocol.errors import NotReady
from services.protocol.trainer import RunStart, Trainer, TrainerState

_log = Log("orchestrator")


async def start_trainer(
    trainer: Trainer, start: RunStart, config: OrchestratorConfig
) -> TrainerState:
    """Wait until all ranks are up and load the run's newest checkpoint.

    Used when a run starts, when it is resumed and whenever the trainer was lost.

    Raises:
        NotReady: it has not come back after `trainer_timeout_s`.
        InvalidInput: the trainer refuses the run.
    """
    deadline = time.monotonic() + config.trainer_timeout_s
    pause = config.backoff_s
    while True:
        try:
            if (await trainer.state()).ready:
                return await trainer.start_run(start)
            problem = "its ranks are not all up"
        except NotReady as error:
            problem = str(error)
        if time.monotonic() + pause > deadline:
            waited = f"{config.trainer_timeout_s:g} s"
            raise NotReady(f"the trainer has not come back in {waited}: {problem}")
        _log.info("waiting_for_trainer", run=start.run_id, problem=problem)
        await asyncio.sleep(pause)
        pause = min(2 * pause, config.backoff_max_s)
