"""The order in which prompts are used."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place in an order of prompts.

    Attributes:
        position: 0-based, over all epochs.
        epoch: 0-based, of its source.
        index: of the prompt, over all sources.
    """

    position: int
    epoch: int
    index: int


class Order(Protocol):
    """Where the prompts of a run come from, one after the other."""

    def next(self, position: int) -> Place:
        """The place to take at a position or, if that is passed over, after it."""


class PromptOrder:
    """A seeded order without end: each epoch is a fresh shuffle of all prompts.

    The order is a pure function of seed and position, so that a position is all that a
    resumed run needs to know: no prompt of an epoch is skipped or used twice.
    """

    def __init__(self, *, seed: int, count: int) -> None:
        if count < 1:
            raise ValueError("an order needs at least one prompt")
        self._seed = seed
        self._count = count
        self._epoch = -1
        self._order: list[int] = []

    def at(self, position: int) -> tuple[int, int]:
        """Epoch and prompt index at a 0-based position."""
        epoch, place = divmod(position, self._count)
        if epoch != self._epoch:
            self._order = list(range(self._count))
            random.Random(f"{self._seed}:{epoch}").shuffle(self._order)
            self._epoch = epoch
        return epoch, self._order[place]


class Mixture:
    """Several seeded orders, taken in turn so that each has its share by weight at any time.

    Like `PromptOrder` a pure function of the position: a resumed run counts again from the
    first one, which takes a microsecond a position.
    """

    def __init__(self, *, seed: int, counts: Sequence[int], weights: Sequence[float]) -> None:
        used = [place for place, count in enumerate(counts) if count]
        self._orders = [PromptOrder(seed=seed, count=counts[place]) for place in used]
        self._starts = [sum(counts[:place]) for place in used]
        self._weights = [weights[place] for place in used]
        self._rewind()

    def _rewind(self) -> None:
        self._next = 0
        self._taken = [0] * len(self._orders)
        self._credit = [0.0] * len(self._orders)

    def next(self, position: int) -> Place:
        """The place at a position: none is passed over."""
        epoch, index = self.at(position)
        return Place(position=position, epoch=epoch, index=index)

    def at(self, position: int) -> tuple[int, int]:
        """Epoch of its source, and prompt index over all sources, at a 0-based position."""
        if position < self._next:
            self._rewind()
        while self._next < position:
            self._take()
        return self._take()

    def _take(self) -> tuple[int, int]:
        """Whoever is owed most is next; the first of those who are owed the same."""
        self._credit = [
            owed + weight for owed, weight in zip(self._credit, self._weights, strict=True)
        ]
        source = self._credit.index(max(self._credit))
        self._credit[source] -= sum(self._weights)
        place = self._taken[source]
        self._taken[source] += 1
        self._next += 1
        epoch, index = self._orders[source].at(place)
        return epoch, self._starts[source] + index
