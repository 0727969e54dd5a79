"""The ideal schedule: what the parameters of a preset allow when control takes no time.

A plain simulation of the hardware that shares nothing with the orchestrator: the rules of
docs/schedules.md, written down again in few words. Everything is decided at the very moment at
which it can be, and the future is known: answers that wait for a place on a replica go in the
order that turns out best for the whole run, of oldest first, longest first, and shortest group
first. The fastest of the three is the ideal. No real schedule knows lengths beforehand; what is
beyond its reach for that reason alone counts against it all the same.

The rules are the preset's: how many groups may be open and how many ahead of the live weights, a
prompt order in which a free slot is used at once, batches of `batch_groups` that hold whatever
no later batch may, and at staleness 0 no sampling between a full batch and its live weights. Why
a schedule that breaks them is no yardstick: one that leaves slots empty on purpose gains only
where it knows which prompt will be long before it samples it, and one that trains without its
oldest groups trains what is short.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from millrace_tools.simulation.clock import Clock
from millrace_tools.simulation.hardware import Setup

ORDERS: dict[str, Callable[[Sequence[int], int], float]] = {
    "oldest first": lambda tokens, place: 0.0,
    "longest first": lambda tokens, place: -tokens[place],
    "shortest group first": lambda tokens, place: max(tokens),
}
"""Which waiting answer is sampled next: the least of these, then the oldest."""


BLIND = "oldest first"
"""The order for which no length need be known."""


@dataclass(kw_only=True)
class Open:
    """An admitted group that no batch holds."""

    version: int
    unsampled: int
    ungraded: int
    held: list[int] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """All its answers are graded."""
        return not self.ungraded


class Oracle:
    """One run from its first admission to its last train step.

    Attributes:
        order: in which waiting answers are served.
        tokens: that were trained.
        ended: when each train step did.
    """

    def __init__(self, setup: Setup, order: str) -> None:
        self._setup, self._schedule, self._batch = setup, setup.schedule, setup.batch_groups
        self.order, self._key = order, ORDERS[order]
        self._clock = Clock()
        self._open: dict[int, Open] = {}
        self._waiting: list[tuple[float, int, int, float]] = []
        self._running: dict[tuple[int, int], float] = {}
        self._jobs: list[tuple[int, int]] = []
        self._sandboxes = setup.hardware.sandboxes
        self._step = self._live = 0
        self._not_live: dict[int, int] = {}
        self._in_training = self._admitted = 0
        self._full, self._look, self._ready = False, True, 0
        self.tokens = 0
        self.ended: list[float] = []
        self._decide()
        while self._step < setup.steps:
            self._clock.step()
            self._decide()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self._clock.now

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens a second."""
        return self.tokens / self.seconds

    def _decide(self) -> None:
        self._train()
        self._admit()
        self._sample()
        self._grade()

    @property
    def _stops(self) -> bool:
        return self._schedule.unfinished == "interrupt"

    @property
    def _waits_for_weights(self) -> bool:
        """Nothing may be sampled now that could be trained."""
        behind = self._live < self._step or bool(self._in_training)
        return behind and self._schedule.max_staleness == 0

    def _admit(self) -> None:
        if self._waits_for_weights or self._full:
            return
        charged = len(self._open) + self._in_training + sum(self._not_live.values())
        left = (self._setup.steps - self._step) * self._batch - len(self._open) - self._in_training
        admissible = min(
            self._schedule.groups_in_flight(self._batch) - len(self._open),
            self._schedule.groups_ahead(self._batch) - charged,
            left,
        )
        for _ in range(max(0, admissible)):
            self._admitted += 1
            tokens = self._setup.trace.group(self._admitted).tokens
            size = len(tokens)
            self._open[self._admitted] = Open(version=self._live, unsampled=size, ungraded=size)
            for place in range(size):
                key = self._key(tokens, place)
                heapq.heappush(self._waiting, (key, self._admitted, place, float(tokens[place])))

    def _sample(self) -> None:
        if self._stops and (self._full or self._waits_for_weights):
            return
        while self._waiting and len(self._running) < self._setup.hardware.sequences:
            _, group, place, seconds = heapq.heappop(self._waiting)
            self._running[group, place] = ends = self._clock.now + seconds
            self._clock.after(seconds, partial(self._sampled, group, place, ends))

    def _sampled(self, group: int, place: int, ends: float) -> None:
        if self._running.get((group, place)) != ends:
            return  # it was interrupted
        del self._running[group, place]
        one = self._open[group]
        one.unsampled -= 1
        one.held.append(place)
        if not self._schedule.batch_barrier:
            self._jobs += [(group, place) for place in one.held]
            one.held = []
        elif not one.unsampled and not any(other.unsampled for other in self._open.values()):
            for name, other in self._open.items():
                self._jobs += [(name, place) for place in other.held]
                other.held = []

    def _interrupt(self) -> None:
        """Answers that are being sampled keep their tokens and go on before all others."""
        for (group, place), ends in self._running.items():
            heapq.heappush(self._waiting, (-1e9, group, place, ends - self._clock.now))
        self._running = {}

    def _grade(self) -> None:
        begun = min(self._sandboxes, len(self._jobs))
        for group, place in self._jobs[:begun]:
            seconds = self._setup.trace.group(group).score_s[place]
            self._clock.after(seconds, partial(self._graded, group))
        del self._jobs[:begun]
        self._sandboxes -= begun

    def _graded(self, group: int) -> None:
        self._sandboxes += 1
        one = self._open[group]
        one.ungraded -= 1
        if one.ready:
            self._ready += 1
            self._look = True

    def _train(self) -> None:
        if self._in_training or self._step == self._setup.steps:
            return
        if not self._look or self._ready < self._batch:
            return
        self._look = False
        ready = [group for group in sorted(self._open) if self._open[group].ready]
        if self._stops and not self._full:
            self._full = True
            self._interrupt()
        must = self._must()
        if not must <= set(ready):
            return
        batch = sorted(must) + [group for group in ready if group not in must]
        batch = batch[: max(self._batch, len(must))]
        for group in batch:
            del self._open[group]
            self.tokens += sum(self._setup.trace.group(group).tokens)
        self._ready -= len(batch)
        self._in_training, self._full = len(batch), False
        self._clock.after(self._setup.hardware.train_s, self._trained)

    def _must(self) -> set[int]:
        """The groups that this batch must hold, ready or not."""
        limit = self._step - self._schedule.max_staleness
        if self._schedule.unfinished == "wait":
            must = set(sorted(self._open)[: self._batch])
        else:
            must = set()
        if self._schedule.on_stale == "mask":  # all its tokens would be too old
            return must | {g for g, one in self._open.items() if not one.unsampled}
        return must | {g for g, one in self._open.items() if one.version <= limit}

    def _trained(self) -> None:
        self._step += 1
        self.ended.append(self._clock.now)
        self._look = True
        self._not_live[self._step] = self._in_training
        self._in_training = 0
        self._clock.after(self._setup.hardware.push_s, partial(self._pushed, self._step))

    def _pushed(self, version: int) -> None:
        self._live = version
        self._not_live.pop(version)


def ideal(setup: Setup) -> tuple[Oracle, Oracle]:
    """The fastest of the orders, in trained tokens a second, and the one that knows no lengths."""
    found = {order: Oracle(setup, order) for order in ORDERS}
    return max(found.values(), key=lambda one: one.tokens_per_s), found[BLIND]
