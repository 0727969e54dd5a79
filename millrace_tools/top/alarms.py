"""Alarms: facts of a snapshot that need attention."""

from collections.abc import Iterator

from millrace_tools.top.snapshot import Rewards, Snapshot
from services.protocol.run.orchestrator import RunState, RunStatus
from services.protocol.weights.weight_bus import ReplicaState

_QUEUE_AGE_S = 60.0
_UNHEALTHY = (ReplicaState.SUSPECT, ReplicaState.DEAD)
_WORKING = (RunState.TRAINING, RunState.EVALUATING)


def alarms(look: Snapshot) -> list[str]:
    """All alarms: sources that do not answer, then runs, replicas, pushes and rewards."""
    return list(_alarms(look))


def _alarms(look: Snapshot) -> Iterator[str]:
    for source, why in look.absent.items():
        yield f"{source}: {why}"
    lent = any(one.state == ReplicaState.LENT for one in look.replicas)
    for run in look.runs:
        yield from _of_run(run, lent=lent)
    for one in look.replicas:
        if one.state in _UNHEALTHY:
            yield f"{one.replica_id} is {one.state}: {one.error or 'no reason known'}"
    for push in look.pushes[-1:]:
        if push.failures:
            yield f"version {push.version} failed {push.failures} times: {push.error}"
    if look.rewards is not None:
        yield from _of_rewards(look.rewards)


def _of_run(run: RunStatus, *, lent: bool) -> Iterator[str]:
    if run.state in (RunState.FAILED, RunState.RECOVERING, RunState.DISK_FULL):
        yield f"{run.run_id} is {run.state}: {run.detail}"
    counts = run.ledger.model_dump()
    if off := counts.pop("admitted") - sum(counts.values()):
        yield f"{run.run_id}: the ledger does not balance, the sides differ by {off}"
    if run.state in _WORKING:
        if run.heldout_problem:
            yield f"{run.run_id}: {run.heldout_problem}"
        for one in run.findings:
            yield f"{run.run_id}: {one.text}"
        if not run.live_replicas and not lent:  # else it is the trainer's turn
            yield f"{run.run_id} has no replica with a lease"


def _of_rewards(rewards: Rewards) -> Iterator[str]:
    for verdict in ("infra_error", "crashed_sandbox"):
        if rate := rewards.verdicts.get(verdict):
            yield f"{rate:.2g} answers a second end in {verdict}"
    if rewards.queue_age_s > _QUEUE_AGE_S:
        yield f"an answer has waited {rewards.queue_age_s:.0f} s to be graded"
