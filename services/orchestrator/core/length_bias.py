"""Length bias: trained answers may be shorter or longer than sampled ones."""

from collections.abc import Sequence

SETTLED_BATCHES = 8
"""Batches until answers that are still being sampled weigh little beside consumed ones."""

ALARMING = 0.1
"""A difference of this share of the mean length is logged as a warning."""


class LengthBias:
    """Compares the mean length of consumed answers with that of sampled ones.

    What is consumed was trained, or left out because its group's rewards were equal: length
    had no part in that. An answer that was cut off has no length: it counts with a lower
    bound, as long as its longest sibling or as the mean, whichever is longer.
    """

    def __init__(self, *, settled_after: int) -> None:
        self._settled_after = settled_after
        self._warned = False
        self._sampled = [0.0, 0]
        self._consumed = [0.0, 0]
        self._step_sampled = [0.0, 0]

    def sampled(self, length: int) -> None:
        """An answer of so many tokens has arrived."""
        for total in (self._sampled, self._step_sampled):
            total[0] += length
            total[1] += 1

    def cut_off(self, count: int, siblings: Sequence[int]) -> None:
        """`count` answers were cut off; `siblings` are the lengths of the others of their group."""
        at_least = max([*siblings, _mean(self._sampled) or 0.0])
        self._sampled[0] += count * at_least
        self._sampled[1] += count

    def consumed(self, lengths: Sequence[int]) -> None:
        """Answers of these lengths were used."""
        self._consumed[0] += sum(lengths)
        self._consumed[1] += len(lengths)

    @property
    def settled(self) -> bool:
        """Whether enough answers were consumed for the bias to mean something.

        Before, answers in progress are longer than the first to arrive, in any schedule.
        """
        return self._consumed[1] >= self._settled_after

    @property
    def running(self) -> float | None:
        """Mean length consumed over mean length sampled, less 1; None before the first.

        Below 0, long answers are trained less often than they are sampled.
        """
        sampled, consumed = _mean(self._sampled), _mean(self._consumed)
        return None if not sampled or consumed is None else consumed / sampled - 1.0

    @property
    def alarm(self) -> bool:
        """Whether to warn now: once each time that the bias becomes too large."""
        alarming = self.settled and abs(self.running or 0.0) > ALARMING
        before, self._warned = self._warned, alarming
        return alarming and not before

    def take_step(self) -> float | None:
        """Mean length of the answers that arrived since the last call."""
        mean, self._step_sampled = _mean(self._step_sampled), [0.0, 0]
        return mean


def _mean(total: list[float]) -> float | None:
    return total[0] / total[1] if total[1] else None
