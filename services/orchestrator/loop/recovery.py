"""Starting the trainer, and bringing it back after a loss."""

import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.observability.log import Log
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.loop.trainer_watch import StartDeadline, watched
from services.protocol.errors import NotReady
from services.protocol.trainer import TrainerState
from services.retry import retrying

T = TypeVar("T")
_log = Log("orchestrator")


class RunFailed(RuntimeError):
    """The run cannot go on; the message says why."""


class TrainerLost(RuntimeError):
    """A call to the trainer failed, for any reason."""


async def ask(context: RunContext, call: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The trainer's answer and the seconds it took.

    Raises:
        TrainerLost: in place of every error. Whether the ranks died, the service restarted
            or refuses a step that it does not expect, the way out is the same: go back to
            the newest checkpoint, a bounded number of times.
    """
    began = time.monotonic()
    try:
        return await watched(context, call), time.monotonic() - began
    except Exception as error:
        raise TrainerLost(repr(error)) from error


async def start_trainer(context: RunContext) -> TrainerState:
    """Wait until all ranks are up and load the run's newest checkpoint.

    Used when a run starts, when it is resumed and whenever the trainer was lost; the run's
    progress says what it waits for.

    Raises:
        NotReady: it has shown no progress for `trainer_timeout_s`, or failed too often.
        InvalidInput: the trainer refuses the run.
    """
    config, trainer, start = context.config, context.peers.trainer, context.start
    waited, deadline = f"{config.trainer_timeout_s:g} s", StartDeadline(context)

    async def started() -> TrainerState:
        state = await trainer.state()
        deadline.heard(state)
        if not state.ready:
            doing = f": {state.progress}" if state.progress else ""
            raise NotReady(f"its ranks are not all up{doing}")
        try:
            return await watched(context, trainer.start_run(start), deadline.worked)
        except NotReady:
            deadline.failed()
            raise
        except RuntimeError as error:  # every rank failed; new ones are on their way
            deadline.failed()
            raise NotReady(str(error)) from error

    def waits(error: NotReady, _: float) -> None:
        if deadline.over:
            raise NotReady(
                f"the trainer made no progress for {waited}: {str(error).rstrip('.')}; `serve "
                "status` shows whether its application is deployed and healthy"
            ) from error
        context.progress.detail = f"waiting for the trainer: {error}"
        _log.info("waiting_for_trainer", run=start.run_id, problem=str(error))

    state = await retrying(started, pauses=config.pauses, failed=waits)
    context.progress.shares_devices = state.shares_devices
    for why in state.refused_checkpoints:
        _log.warning("checkpoint_refused", run=start.run_id, why=why)
    return state


def adopt(context: RunContext, book: GroupBook, state: TrainerState) -> int:
    """Go on from where trainer and ledger are; the ledger is never behind a checkpoint.

    Returns:
        The trainer's policy version.

    Raises:
        RunFailed: they do not belong together.
    """
    ledger, progress = book.ledger, context.progress
    if state.policy_version is None:
        raise RunFailed("the trainer started the run without publishing a version")
    if state.step > ledger.last_step():
        raise RunFailed(
            f"the checkpoint is at step {state.step}, the ledger at "
            f"{ledger.last_step()}: they are not of the same run"
        )
    # Where versions count from the beginning again, as in a new cluster, an older
    # result has no known staleness.
    comparable = state.policy_version >= ledger.fact("policy_version", 0)
    book.resume(state.step, comparable=comparable, repeats=context.run.determinism)
    if state.frontier is not None and not ledger.reaches(state.frontier):
        raise RunFailed(
            f"the checkpoint of step {state.step} was written when the ledger had "
            f"{state.frontier}, the ledger has {ledger.frontier()}: they are not of the "
            "same run, or one of them is an older copy"
        )
    ledger.note(policy_version=state.policy_version)
    progress.step = progress.saved_step = state.step
    progress.policy_version = state.policy_version
    return state.policy_version
