"""Answers about a run that are valid until its files change."""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache

T = TypeVar("T")

_MOST = 16


class RevisionCache:
    """Answers the same question of many browsers once for each revision of the run.

    It works on one question at a time, since questions also extend the indexes.

    Args:
        revision: another value whenever the answers may be others.
        most: answers that are kept.
    """

    def __init__(self, revision: Callable[[], object], *, most: int = _MOST) -> None:
        self._revision = revision
        self._turn = Lock()
        self._of: object = None
        self._known: LRUCache[Hashable, Any] = LRUCache(most)

    def get(self, question: Hashable, find: Callable[[], T]) -> T:
        """The answer to a question; an error is not kept.

        Raises:
            Whatever `find` raises.
        """
        with self._turn:
            revision = self._revision()
            if revision != self._of:
                self._known.clear()
                self._of = revision
            if question not in self._known:
                self._known[question] = find()
            answer: T = self._known[question]
            return answer
