"""Answers about a run that hold until it has something new."""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

_MOST = 16


class RevisionCache:
    """Finds out once what many browsers ask at the same time: when the run has something new.

    One question at a time is looked into, since what is read also grows by it.

    Args:
        revision: another value whenever the answers may be others.
        most: answers that are kept.
    """

    def __init__(self, revision: Callable[[], object], *, most: int = _MOST) -> None:
        self._revision, self._most = revision, most
        self._turn = Lock()
        self._of: object = None
        self._known: dict[Hashable, object] = {}

    def get(self, question: Hashable, find: Callable[[], T]) -> T:
        """The answer; one that could not be found is not remembered.

        Raises:
            Whatever `find` raises.
        """
        with self._turn:
            revision = self._revision()
            if revision != self._of:
                self._known.clear()
                self._of = revision
            if question not in self._known:
                answer = find()
                while len(self._known) >= self._most:
                    del self._known[next(iter(self._known))]
                self._known[question] = answer
            return self._known[question]  # type: ignore[return-value]  # `find` gave it
