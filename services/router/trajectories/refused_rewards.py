"""Rewards that no session takes, counted by why."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Literal

from services.observability.metrics import RouterMetrics
from services.router.errors import RequestFailed
from services.router.trajectories.session_store import Session

Reason = Literal["late", "twice", "unknown_session", "other_session", "invalid"]
"""Why a reward was refused:

- `late`: the session has ended without it, or is gone;
- `twice`: the session has ended with another result;
- `unknown_session`: there never was such a session, or nobody remembers it;
- `other_session`: it came with the key of another session;
- `invalid`: it is no finite number, its grader was not offered, or its request cannot be read.
"""


def count_refused(reason: Reason) -> None:
    """Count a reward that was refused."""
    RouterMetrics.rewards_refused.inc(tags={"reason": reason})


class EndedSessions:
    """Sessions that are gone, and whether each had a result; the newest ones.

    Args:
        bound: how many are remembered.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._graded: OrderedDict[str, bool] = OrderedDict()

    def add(self, session: Session) -> None:
        """A session was deleted or dropped."""
        self._graded[session.id] = session.graded
        if len(self._graded) > self._bound:
            self._graded.popitem(last=False)

    @contextmanager
    def counted(self, name: str, session: Session | None, again: Reason) -> Iterator[None]:
        """Count the reward if it is refused in the block.

        Args:
            name: of the session that it is for.
            session: if it is still there.
            again: what it is if the session has a result.
        """
        try:
            yield
        except RequestFailed as refusal:
            graded = session.graded if session else self._graded.get(name)
            reason: Reason = again if graded else "late"
            if refusal.status == HTTPStatus.BAD_REQUEST:
                reason = "invalid"
            elif graded is None:
                reason = "unknown_session"
            count_refused(reason)
            raise
