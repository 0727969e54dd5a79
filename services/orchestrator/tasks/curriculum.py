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


@dataclass(frozen=True)
class Curriculum:
    """An order of prompts that passes over tasks outside of a band of pass rates.

    The choice at a position is a function of the seed, the position and the rates known then.
    Places that are passed over leave gaps in the positions, so a position is still all that a
    resumed run needs to know besides the rates.
    """

    config: CurriculumConfig
    order: Mixture
    rates: PassRates
    seed: int

    def next(self, position: int) -> Prompt:
        """The first prompt at or after a position that is taken."""
        for at in range(position, position + _LONGEST_SEARCH):
            prompt = self.order.next(at)
            if self._takes(prompt):
                return prompt
        return self.order.next(position + _LONGEST_SEARCH)

    def _takes(self, prompt: Prompt) -> bool:
        rate = self.rates.of(prompt.task_id)
        if rate is None or self.config.low <= rate <= self.config.high:
            return True
        return random.Random(f"{self.seed}:curriculum:{prompt.position}").random() < (
            self.config.floor
        )
