"""Responses that later requests refer to: pure, bounded in number, size and time."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.http.json_body import json_bytes
from services.router.errors import RequestFailed

_Items = list[dict[str, Any]]


@dataclass(frozen=True)
class _Stored:
    """One response; those before it live as long as it does."""

    response: dict[str, Any]
    items: _Items  # its own input and output
    earlier: "_Stored | None"
    nbytes: int

    def chain(self) -> Iterator["_Stored"]:
        """This one, and those before it."""
        at: _Stored | None = self
        while at is not None:
            yield at
            at = at.earlier


class StoredResponses:
    """Responses by id, least recently used first.

    Args:
        max_responses: how many.
        max_bytes: of JSON, over all of them.
        idle_s: how long one is kept after its last use.
    """

    def __init__(self, *, max_responses: int, max_bytes: int, idle_s: float) -> None:
        self._max_responses, self._max_bytes, self._idle_s = max_responses, max_bytes, idle_s
        self._stored: OrderedDict[str, tuple[float, _Stored]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(
        self, response: dict[str, Any], new: _Items, earlier: str | None, *, now: float
    ) -> None:
        """Keep a response.

        Args:
            response: its body.
            new: the request's own input items.
            earlier: the response that it goes on from.
            now: of a monotonic clock, seconds.
        """
        name = str(response["id"])
        self.remove(name)
        before = self._stored.get(earlier) if earlier is not None else None
        stored = _Stored(
            response,
            items=new + list(response["output"]),
            earlier=before[1] if before else None,
            nbytes=len(json_bytes(response)) + len(json_bytes(new)),
        )
        self._stored[name] = now, stored
        self.nbytes += stored.nbytes
        self._use(stored, now)
        self._drop(now)

    def get(self, name: str, *, now: float) -> dict[str, Any]:
        """The body of a response.

        Raises:
            RequestFailed: 404, it is not here.
        """
        return self._found(name, now).response

    def history(self, name: str, *, now: float) -> _Items:
        """All input and output items up to the end of a response.

        Raises:
            RequestFailed: 404, it is not here.
        """
        chain = list(self._found(name, now).chain())
        return [item for one in reversed(chain) for item in one.items]

    def remove(self, name: str) -> bool:
        """Forget a response; returns whether it was here."""
        found = self._stored.pop(name, None)
        if found is not None:
            self.nbytes -= found[1].nbytes
        return found is not None

    def _found(self, name: str, now: float) -> _Stored:
        self._drop(now)
        if name not in self._stored:
            message = (
                f"the response {name!r} is not here: it was never stored, was deleted, or is "
                "older than what the router keeps; send all of its items as input"
            )
            raise RequestFailed(404, "response_not_found", message, param="previous_response_id")
        stored = self._stored[name][1]
        self._use(stored, now)
        return stored

    def _use(self, used: _Stored, now: float) -> None:
        """What a response goes on from is kept as long as it is."""
        for one in reversed(list(used.chain())):
            name = str(one.response["id"])
            if name in self._stored:
                self._stored[name] = now, one
                self._stored.move_to_end(name)

    def _drop(self, now: float) -> None:
        while self._stored:
            name, (used, _) = next(iter(self._stored.items()))
            many = len(self._stored) > self._max_responses or self.nbytes > self._max_bytes
            if not many and used > now - self._idle_s:
                return
            self.remove(name)
