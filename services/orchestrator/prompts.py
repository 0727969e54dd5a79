"""The order in which prompts are used."""

import random


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
