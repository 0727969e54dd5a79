"""The prompts of a run, one after another."""

from collections.abc import Sequence

from services.ledger.sample_group import Prompt
from services.orchestrator.tasks.prompts import Order


class PromptSource:
    """Gives the next prompt of an order.

    Args:
        order: of places in `task_ids`.
        task_ids: of the tasks to learn from.

    Attributes:
        position: 0-based, where the next prompt is looked for.
    """

    def __init__(self, order: Order, task_ids: Sequence[str]) -> None:
        self._order, self._task_ids = order, task_ids
        self.position = 0

    def next(self) -> Prompt:
        """The next prompt; its position is passed."""
        place = self._order.next(self.position)
        self.position = place.position + 1
        task_id = self._task_ids[place.index]
        return Prompt(position=place.position, epoch=place.epoch, task_id=task_id)
