"""Watches a run's ledger and trainer from outside, and says at once what must never be."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.ledger.ledger import Ledger
from services.ledger.sample_group import Ending
from services.protocol.run.orchestrator import RunConfig
from services.protocol.trajectory import Trajectory
from tests.batches import GroupBatch


class Witness:
    """What was seen of one run, over all its lives.

    Attributes:
        problems: what must never be and was; empty in a good run.
        balanced: transactions after which the ledger balanced.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._bound = config.schedule.max_staleness
        self._on_stale = config.schedule.on_stale
        self._ready: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._ready_at_batch: dict[int, int] = {}
        self._version = 0
        self._closed: dict[int, tuple[str, int]] = {}
        self._ledger: WatchedLedger | None = None
        self.problems: list[str] = []
        self.balanced = 0

    def ledger(self, path: str | Path) -> "WatchedLedger":
        """Open a run's ledger; what an earlier life had committed must be in it."""
        ledger = self._ledger = WatchedLedger(path, self)
        kept = "SELECT group_id, oldest_version FROM groups JOIN results USING (group_id)"
        self._ready = dict(ledger._db.execute(kept).fetchall())
        counts = ledger.counts()
        closed = counts.admitted - counts.in_flight
        if closed != len(self._closed):
            self._say(f"{len(self._closed)} groups had closed, the file knows {closed}")
        return ledger

    def look_away(self) -> None:
        """The orchestrator is dead: what its ruins do to their ledger counts no more."""
        if self._ledger is not None:
            self._ledger._witness = Witness(self._config)

    def _say(self, problem: str) -> None:
        self.problems.append(problem)

    def balance(self, imbalance: int) -> None:
        """A transaction ended."""
        self.balanced += 1
        if imbalance:
            self._say(f"the ledger is off by {imbalance} after {self.balanced} transactions")

    def rolled_out(self, group_id: int, oldest: int | None) -> None:
        """A rollout ended; with `oldest` the group is ready."""
        self._ready.pop(group_id, None)
        if oldest is not None:
            self._ready[group_id] = oldest

    def again(self, group_id: int) -> None:
        """A group begins anew."""
        self._ready.pop(group_id, None)

    def closed(self, group_id: int, how: str, step: int = 0) -> None:
        """A group has closed."""
        self._ready.pop(group_id, None)
        if group_id in self._closed:
            self._say(f"group {group_id} closed twice: {self._closed[group_id]}, {how}")
        self._closed[group_id] = (how, step)

    def rolled_back(self, step: int, keep: Collection[int]) -> None:
        """What later steps trained is open again; only what is kept is ready."""
        self._ready = {group: oldest for group, oldest in self._ready.items() if group in keep}
        for group_id, (how, trained_in) in list(self._closed.items()):
            if how == "trained" and trained_in > step:
                del self._closed[group_id]

    def batch(self, batch: GroupBatch, version: int) -> None:
        """The trainer got a batch while it held this version."""
        self._ready_at_batch, self._version = dict(self._ready), version
        for group in batch.groups:
            trajectories = [one.trajectory for one in group.trajectories]
            self._newest[group.group_id] = max(max(_versions(t)) for t in trajectories)
            learned = [v for t in trajectories for v in _versions(t, masked=False)]
            staleness = version - min(learned, default=version)
            if staleness > self._bound:
                self._say(f"group {group.group_id} trained at staleness {staleness}")

    def batch_closed(self, step: int, train: Sequence[int], filtered: Sequence[int]) -> None:
        """A batch left the ledger: it must have held the oldest of those that were ready."""
        ready = self._ready_at_batch if train else dict(self._ready)
        taken = {*train, *filtered}
        left = min((group for group in ready if group not in taken), default=None)
        free = [group for group in taken if not self._had_to_go(group, ready)]
        if left is not None and train and any(group > left for group in free):
            self._say(f"step {step} took {sorted(taken)} before group {left}, which was ready")
        for group_id in train:
            self.closed(group_id, "trained", step)
        for group_id in filtered:
            self.closed(group_id, "filtered", step)

    def _had_to_go(self, group_id: int, ready: dict[int, int]) -> bool:
        """No later batch could have trained the group."""
        decisive = self._newest if self._on_stale == "mask" else ready
        limit = self._version - self._bound
        return self._on_stale != "drop" and decisive.get(group_id, limit) <= limit

    def judge_end(self, path: Path, lineage: Sequence[GroupBatch], delivered: int | None) -> None:
        """A run has finished: compare its ledger with what the surviving weights were made of.

        `delivered` are the response tokens that reached the run, None where some reached an
        orchestrator that was killed before it could write them down.
        """
        ledger = Ledger(path)
        rows = ledger._db.execute("SELECT group_id, position, status FROM groups").fetchall()
        sampled, imbalance = ledger.token_counts().admitted, ledger.imbalance()
        ledger.close()
        trained = Counter(group.group_id for batch in lineage for group in batch.groups)
        if twice := [group for group, times in trained.items() if times > 1]:
            self._say(f"groups {twice} are in the weights more than once")
        if set(trained) != {group for group, _, status in rows if status == "trained"}:
            self._say("the ledger and the weights disagree about what was trained")
        if sorted(position for _, position, _ in rows) != list(range(len(rows))):
            self._say("a prompt was skipped or used twice")
        if still := [group for group, _, status in rows if status == "in_flight"]:
            self._say(f"groups {still} never closed")
        if {group for group, _, _ in rows} != set(self._closed):
            self._say("some groups closed unseen")
        if imbalance:
            self._say(f"the ledger is off by {imbalance} at the end")
        if delivered is not None and sampled != delivered:
            self._say(f"{delivered} tokens were delivered, the ledger knows {sampled}")


def _versions(trajectory: Trajectory, *, masked: bool = True) -> list[int]:
    """Of each response token, or of each that carries a gradient."""
    learned = trajectory.loss_mask
    return [
        span.version
        for span in trajectory.spans
        for place in range(span.start, span.end)
        if masked or learned[place]
    ]


class WatchedLedger(Ledger):
    """The ledger itself; a witness hears of every transition and looks at every balance."""

    def __init__(self, path: str | Path, witness: Witness) -> None:
        super().__init__(path)
        self._witness = witness

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
        self._witness.balance(self.imbalance())

    def rolled_out(self, group_id: int, **told: Any) -> None:
        """See `Ledger`."""
        super().rolled_out(group_id, **told)
        self._witness.rolled_out(group_id, told["oldest_version"])

    def restart(self, group_id: int, *, version: int) -> None:
        """See `Ledger`."""
        super().restart(group_id, version=version)
        self._witness.again(group_id)

    def close_group(self, group_id: int, ending: Ending, *, reason: str = "") -> None:
        """See `Ledger`."""
        super().close_group(group_id, ending, reason=reason)
        self._witness.closed(group_id, ending)

    def close_batch(
        self,
        step: int,
        *,
        train: Sequence[int],
        filtered: Sequence[int],
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        """See `Ledger`."""
        super().close_batch(step, train=train, filtered=filtered, reasons=reasons)
        self._witness.batch_closed(step, train, filtered)

    def rollback(self, step: int, *, keep: Collection[int] = (), **told: bool) -> int:
        """See `Ledger`."""
        opened = super().rollback(step, keep=keep, **told)
        self._witness.rolled_back(step, keep)
        return opened
