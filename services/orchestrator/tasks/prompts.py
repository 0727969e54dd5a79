"""The order in which prompts are used."""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from services.ledger.sample_group import Prompt

WINDOW = 4
"""Blocks of a streamed source whose prompts are shuffled among each other."""


class Order(Protocol):
    """An order of prompts."""

    def next(self, position: int) -> Prompt:
        """The prompt to take at a position."""


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


class BlockOrder:
    """A seeded order without end of more prompts than can be shuffled at once.

    Each epoch shuffles the blocks, and then the prompts of `WINDOW` neighbouring blocks among
    each other, so that a reader of this order has few blocks open at a time. Like
    `PromptOrder` a pure function of seed and position; each prompt comes once in an epoch.
    """

    def __init__(self, *, seed: int, blocks: Sequence[int]) -> None:
        self._seed = seed
        self._sizes = blocks
        self._starts = [0, *accumulate(blocks)]
        if not self._starts[-1]:
            raise ValueError("an order needs at least one prompt")
        self._epoch = -1
        self._windows: list[list[int]] = []
        self._ends: list[int] = []
        self._shuffled: tuple[int, list[int]] = (-1, [])

    def at(self, position: int) -> tuple[int, int]:
        """Epoch and prompt index at a 0-based position."""
        epoch, place = divmod(position, self._starts[-1])
        if epoch != self._epoch:
            self._begin(epoch)
        window = bisect_right(self._ends, place)
        if self._shuffled[0] != window:
            self._shuffled = window, self._prompts(window)
        first = self._ends[window - 1] if window else 0
        return epoch, self._shuffled[1][place - first]

    def _begin(self, epoch: int) -> None:
        order = list(range(len(self._sizes)))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        self._windows = [order[at : at + WINDOW] for at in range(0, len(order), WINDOW)]
        sizes = (sum(self._sizes[block] for block in window) for window in self._windows)
        self._ends = list(accumulate(sizes))
        self._epoch, self._shuffled = epoch, (-1, [])

    def _prompts(self, window: int) -> list[int]:
        blocks = self._windows[window]
        prompts = [n for b in blocks for n in range(self._starts[b], self._starts[b + 1])]
        random.Random(f"{self._seed}:{self._epoch}:{window}").shuffle(prompts)
        return prompts


class Mixture:
    """Several seeded orders, taken in turn so that each has its share by weight at any time.

    Like `PromptOrder` a pure function of the position: a resumed run counts again from the
    first one, which takes a microsecond a position. A source with `blocks` is shuffled by
    them (`BlockOrder`), any other one as a whole. `task_ids` are those of all sources together.
    The `first` so many positions are taken from some of the sources only.
    """

    def __init__(
        self,
        *,
        seed: int,
        counts: Sequence[int],
        weights: Sequence[float],
        first: tuple[int, Sequence[bool]] = (0, ()),
        blocks: Mapping[int, Sequence[int]] | None = None,
        task_ids: Sequence[str] = (),
    ) -> None:
        self._task_ids = task_ids
        used = [place for place, count in enumerate(counts) if count]
        streamed = blocks or {}
        self._orders = [
            BlockOrder(seed=seed, blocks=streamed[place])
            if place in streamed
            else PromptOrder(seed=seed, count=counts[place])
            for place in used
        ]
        self._starts = [sum(counts[:place]) for place in used]
        self._weights = [weights[place] for place in used]
        self._first, chosen = first
        # Those that are chosen may have a weight of 0 afterwards.
        self._first_weights = [
            (weights[place] or 1.0) if chosen and chosen[place] else 0.0 for place in used
        ]
        self._rewind()

    def _rewind(self) -> None:
        self._next = 0
        self._taken = [0] * len(self._orders)
        self._credit = [0.0] * len(self._orders)

    def next(self, position: int) -> Prompt:
        """The prompt at a position: none is passed over."""
        return self.prompt(position, *self.turn(position))

    def prompt(self, position: int, source: int, place: int) -> Prompt:
        """What a place of a source's own order has, as the prompt of a position."""
        epoch, index = self._found(source, place)
        return Prompt(position=position, epoch=epoch, task_id=self._task_ids[index])

    def at(self, position: int) -> tuple[int, int]:
        """Epoch of its source, and prompt index over all sources, at a 0-based position."""
        return self._found(*self.turn(position))

    def _found(self, source: int, place: int) -> tuple[int, int]:
        epoch, index = self._orders[source].at(place)
        return epoch, self._starts[source] + index

    def turn(self, position: int) -> tuple[int, int]:
        """Whose turn a 0-based position is: a source that has prompts, and how many it had."""
        if position < self._next:
            self._rewind()
        while self._next < position:
            self._take()
        return self._take()

    def _take(self) -> tuple[int, int]:
        """Take from the source with the most credit; of equal ones from the first."""
        weights = self._first_weights if self._next < self._first else self._weights
        if self._next == self._first:
            self._credit = [0.0] * len(weights)
        self._credit = [
            credit + weight for credit, weight in zip(self._credit, weights, strict=True)
        ]
        source = self._credit.index(max(self._credit))
        self._credit[source] -= sum(weights)
        place = self._taken[source]
        self._taken[source] += 1
        self._next += 1
        return source, place


class PromptSource:
    """Gives the next prompt of an order.

    Attributes:
        position: 0-based, of the next prompt.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.position = 0

    def next(self) -> Prompt:
        """The next prompt; its position is passed."""
        prompt = self._order.next(self.position)
        self.position += 1
        return prompt
