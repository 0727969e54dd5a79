"""The session table: which replica each session was given last."""

from collections import OrderedDict


class SessionTable:
    """A bounded table, least recently used out, idle ones forgotten.

    Args:
        bound: sessions remembered.
        idle_s: one that was not used for so long is forgotten, seconds.
    """

    def __init__(self, *, bound: int, idle_s: float) -> None:
        self._bound, self._idle_s = bound, idle_s
        self._table: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._changed: dict[str, str | None] = {}

    def __len__(self) -> int:
        return len(self._table)

    def get(self, session: str, now: float) -> str | None:
        """The session's home, None if it has none."""
        self._forget_idle(now)
        return self._table.get(session, (None, 0.0))[0]

    def set(self, session: str, replica: str, now: float) -> None:
        """The session was given this replica."""
        if self._table.get(session, ("", 0.0))[0] != replica:
            self._change(session, replica)
        self._put(session, replica, now)

    def hear(self, session: str, home: str | None, now: float) -> None:
        """Another router gave the session this replica; None: it says that it is over.

        A change made here and not taken yet is newer.
        """
        if session in self._changed:
            return
        if home is None:
            self._table.pop(session, None)
        else:
            self._put(session, home, now)

    def _put(self, session: str, replica: str, now: float) -> None:
        self._table[session] = (replica, now)
        self._table.move_to_end(session)
        if len(self._table) > self._bound:
            dropped, _ = self._table.popitem(last=False)
            self._changed.pop(dropped, None)

    def forget(self, session: str) -> None:
        """The session is over."""
        if self._table.pop(session, None) is not None:
            self._change(session, None)

    def take_changes(self, most: int) -> dict[str, str | None]:
        """Up to `most` changes made here that were not taken yet; None: forgotten."""
        taken = dict(list(self._changed.items())[:most])
        for session in taken:
            del self._changed[session]
        return taken

    def all_changed(self) -> None:
        """Whoever takes changes knows nothing any more: everything is a change."""
        self._changed = {session: home for session, (home, _) in self._table.items()}

    def _change(self, session: str, home: str | None) -> None:
        self._changed[session] = home
        if len(self._changed) > self._bound:
            # Nobody takes them, or not as fast: others guess, and learn at the next move.
            del self._changed[next(iter(self._changed))]

    def _forget_idle(self, now: float) -> None:
        oldest_allowed = now - self._idle_s
        while self._table:
            session, (_, used) = next(iter(self._table.items()))
            if used > oldest_allowed:
                return
            del self._table[session]
            self._changed.pop(session, None)
