"""Preferring tasks by the pass rate of their last sample group."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.ledger.sample_group import Prompt
from services.orchestrator.run_folder.journal import Journal
from services.orchestrator.tasks.prompts import Mixture
from services.protocol.run.task import CurriculumConfig

_LONGEST_SEARCH = 10_000  # places passed over in a row, a millisecond or so each hundred
_Line = tuple[int, int, int]


class PassRates:
    """The pass rate of each task's newest graded group; kept in a file.

    Only the newest counts: older ones are of another policy.
    """

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._rates: dict[str, float] = dict(self._journal.lines())

    def note(self, task_id: str, rewards: Sequence[float]) -> None:
        """A group of this task got these rewards, one at least."""
        rate = sum(reward >= 1.0 for reward in rewards) / len(rewards)
        self._rates[task_id] = rate
        self._journal.write([task_id, rate])

    def close(self) -> None:
        """Close the files."""
        self._journal.close()

    def of(self, task_id: str) -> float | None:
        """The newest rate; None for a task that has none."""
        return self._rates.get(task_id)


class PassedOver:
    """How many places of each source's order were passed over so far; kept in a file."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._read()

    def _read(self) -> None:
        lines: list[_Line] = self._journal.lines()
        self._counts = {source: count for _, source, count in lines}
        self._newest = max((position for position, _, _ in lines), default=-1)

    def before(self, position: int, source: int) -> int:
        """How many of a source when a position comes: what was noted from there on is void.

        That is of prompts that no ledger has: their process ended before it admitted them.
        """
        if position <= self._newest:
            self._journal.keep(lambda line: line[0] < position)
            self._read()
        return self._counts.get(source, 0)

    def note(self, position: int, source: int, count: int) -> None:
        """So many of a source with those of this position."""
        self._counts[source], self._newest = count, position
        self._journal.write([position, source, count])

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


@dataclass(frozen=True)
class Curriculum:
    """An order of prompts that passes over tasks outside of a band of pass rates.

    A position belongs to the source whose turn it is, whatever is passed over: that source's next
    task that is taken has it, so that every source keeps its share. The choice is a function of
    the seed, the position, the rates known then, and the places passed over before: all that a
    resumed run needs to know.
    """

    config: CurriculumConfig
    order: Mixture
    rates: PassRates
    passed: PassedOver
    seed: int

    def next(self, position: int) -> Prompt:
        """The prompt of a position: the next that is taken, of the source whose turn it is."""
        source, turn = self.order.turn(position)
        before = self.passed.before(position, source)
        first = turn + before
        for place in range(first, first + _LONGEST_SEARCH + 1):
            prompt = self.order.prompt(position, source, place)
            if self._takes(prompt, source, place):
                break
        if place > first:
            self.passed.note(position, source, before + place - first)
        return prompt

    def _takes(self, prompt: Prompt, source: int, place: int) -> bool:
        rate = self.rates.of(prompt.task_id)
        if rate is None or self.config.low <= rate <= self.config.high:
            return True
        chance = random.Random(f"{self.seed}:curriculum:{source}:{place}")
        return chance.random() < self.config.floor
