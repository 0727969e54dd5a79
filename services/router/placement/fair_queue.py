"""A fair queue: lower priority first, and within one priority each flow in turn."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, kw_only=True)
class Waiter:
    """A place in the queue.

    Attributes:
        priority: lower is served first.
        flow: whose request it is; flows of one priority take turns.
        urgent: it was served before and goes on, so it is ahead of every new one.
        content: what waits.
    """

    priority: int = 0
    flow: str = ""
    urgent: bool = False
    content: Any = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[bool, int]:
        """The lowest is served first."""
        return not self.urgent, self.priority


class FairQueue:
    """Who waits, and who is next; nothing here waits itself."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[bool, int], OrderedDict[str, dict[Waiter, None]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Waiter]:
        """Everybody, in no particular order."""
        for flows in self._ranks.values():
            for waiters in flows.values():
                yield from waiters

    def enter(self, waiter: Waiter) -> None:
        """Join the end of the waiter's flow."""
        flows = self._ranks.setdefault(waiter.rank, OrderedDict())
        flows.setdefault(waiter.flow, {})[waiter] = None
        self._length += 1

    def leave(self, waiter: Waiter) -> None:
        """Give the place up; whoever has left already may leave again."""
        flows = self._ranks.get(waiter.rank, OrderedDict())
        waiters = flows.get(waiter.flow, {})
        if waiter not in waiters:
            return
        del waiters[waiter]
        self._length -= 1
        if not waiters:
            del flows[waiter.flow]
        if not flows:
            del self._ranks[waiter.rank]

    @property
    def first(self) -> Waiter | None:
        """Whose turn it is."""
        if not self._ranks:
            return None
        flows = self._ranks[min(self._ranks)]
        return next(iter(next(iter(flows.values()))))

    def serve(self, waiter: Waiter) -> None:
        """The waiter has had its turn; the next is another flow's, if one waits."""
        self.leave(waiter)
        flows = self._ranks.get(waiter.rank, OrderedDict())
        if waiter.flow in flows:
            flows.move_to_end(waiter.flow)
