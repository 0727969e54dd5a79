"""What in a look needs somebody's attention; one function an alarm."""

from collections.abc import Callable, Iterator

from millrace_tools.top.snapshot import Snapshot
from services.protocol.run.orchestrator import RunState
from services.protocol.weights.weight_bus import ReplicaState

_QUEUE_AGE_S = 60.0
_ILL = (ReplicaState.SUSPECT, ReplicaState.DEAD)
_WORKING = (RunState.TRAINING, RunState.EVALUATING)


def absent(look: Snapshot) -> Iterator[str]:
    """A service does not answer."""
    for source, why in look.absent.items():
        yield f"{source}: {why}"


def runs(look: Snapshot) -> Iterator[str]:
    """A run broke, is being recovered, waits for room, or its ledger is off."""
    for run in look.runs:
        if run.state in (RunState.FAILED, RunState.RECOVERING, RunState.DISK_FULL):
            yield f"{run.run_id} is {run.state}: {run.detail}"
        counts = run.ledger.model_dump()
        off = counts.pop("admitted") - sum(counts.values())
        if off:
            yield f"{run.run_id}: the ledger does not balance, the sides differ by {off}"
        if run.state in _WORKING and run.heldout_problem:
            yield f"{run.run_id}: {run.heldout_problem}"


def leases(look: Snapshot) -> Iterator[str]:
    """A run works, and no replica may be given work."""
    for run in look.runs:
        if run.state in _WORKING and not run.live_replicas:
            yield f"{run.run_id} has no replica with a lease"


def replicas(look: Snapshot) -> Iterator[str]:
    """A replica is suspect or dead."""
    for one in look.replicas:
        if one.state in _ILL:
            yield f"{one.replica_id} is {one.state}: {one.error or 'no reason known'}"


def pushes(look: Snapshot) -> Iterator[str]:
    """The newest version fails somewhere."""
    for push in look.pushes[-1:]:
        if push.failures:
            yield f"version {push.version} failed {push.failures} times: {push.error}"


def rewards(look: Snapshot) -> Iterator[str]:
    """Grading itself fails, or does not keep up."""
    if look.rewards is None:
        return
    for verdict in ("infra_error", "crashed_sandbox"):
        if rate := look.rewards.verdicts.get(verdict):
            yield f"{rate:.2g} answers a second end in {verdict}"
    if look.rewards.queue_age_s > _QUEUE_AGE_S:
        yield f"an answer has waited {look.rewards.queue_age_s:.0f} s to be graded"


ALARMS: tuple[Callable[[Snapshot], Iterator[str]], ...] = (
    absent,
    runs,
    leases,
    replicas,
    pushes,
    rewards,
)


def alarms(look: Snapshot) -> list[str]:
    """All of them, the most basic first."""
    return [text for alarm in ALARMS for text in alarm(look)]
