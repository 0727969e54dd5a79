"""A fair line: lower priority first, and within one priority each flow in turn."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A place in the line.

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


class WaitingLine:
    """Who waits, and who is next; nothing here waits itself."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[bool, int], OrderedDict[str, dict[Ticket, None]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Ticket]:
        """Everybody, in no particular order."""
        for flows in self._ranks.values():
            for tickets in flows.values():
                yield from tickets

    def enter(self, ticket: Ticket) -> None:
        """Join the end of the ticket's flow."""
        flows = self._ranks.setdefault(ticket.rank, OrderedDict())
        flows.setdefault(ticket.flow, {})[ticket] = None
        self._length += 1

    def leave(self, ticket: Ticket) -> None:
        """Give the place up; whoever has left already may leave again."""
        flows = self._ranks.get(ticket.rank, OrderedDict())
        tickets = flows.get(ticket.flow, {})
        if ticket not in tickets:
            return
        del tickets[ticket]
        self._length -= 1
        if not tickets:
            del flows[ticket.flow]
        if not flows:
            del self._ranks[ticket.rank]

    @property
    def first(self) -> Ticket | None:
        """Whose turn it is."""
        if not self._ranks:
            return None
        flows = self._ranks[min(self._ranks)]
        return next(iter(next(iter(flows.values()))))

    def serve(self, ticket: Ticket) -> None:
        """The ticket has had its turn; the next is another flow's, if one waits."""
        self.leave(ticket)
        flows = self._ranks.get(ticket.rank, OrderedDict())
        if ticket.flow in flows:
            flows.move_to_end(ticket.flow)
