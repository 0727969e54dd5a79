"""Responses that later requests refer to: pure, bounded in number, size and time."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.http.json_body import json_bytes
from services.router.errors import RequestFailed, bad_request

_Items = list[dict[str, Any]]

CANCELLED = "cancelled"
UNFINISHED = "queued", "in_progress"
"""Values of `status`."""
_LOST = "the router that made the response has died: ask again"


@dataclass(eq=False)
class _Stored:
    """One response; those before it live as long as it does.

    Attributes:
        router: the one that makes it, if that is known.
        holders: what keeps it: its name, and each response that goes on from it.
    """

    response: dict[str, Any]
    items: _Items  # its own input and output
    earlier: "_Stored | None"
    nbytes: int
    router: str = ""
    holders: int = 1

    def chain(self) -> Iterator["_Stored"]:
        """This one, and those before it."""
        at: _Stored | None = self
        while at is not None:
            yield at
            at = at.earlier


class StoredResponses:
    """Responses by id, least recently used first; each is older there than those before it.

    So the last turns of a conversation are dropped before its first ones, which would live on in
    them.

    Args:
        max_responses: how many.
        max_bytes: of JSON, over all of them.
        idle_s: how long one is kept after its last use.

    Attributes:
        nbytes: of all that live, those included that were deleted and that others go on from.
    """

    def __init__(self, *, max_responses: int, max_bytes: int, idle_s: float) -> None:
        self._max_responses, self._max_bytes, self._idle_s = max_responses, max_bytes, idle_s
        self._stored: OrderedDict[str, tuple[float, _Stored]] = OrderedDict()
        self._living = self.nbytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(
        self,
        response: dict[str, Any],
        new: _Items,
        earlier: str | None,
        *,
        now: float,
        router: str = "",
    ) -> None:
        """Keep a response, unless what it goes on from has gone meanwhile.

        One that is made in the background is put twice. The second time it is kept only if it is
        still unfinished here: another router may have cancelled or deleted it.

        Args:
            response: its body.
            new: the request's own input items.
            earlier: the response that it goes on from.
            now: of a monotonic clock, seconds.
            router: that has made it, or makes it.
        """
        name = str(response["id"])
        if response.get("background") and not _is_unfinished(response):
            known = self._stored.get(name)
            if known is None or not _is_unfinished(known[1].response):
                return
        before = None if earlier is None else self._stored.get(earlier)
        if before is not None:
            before[1].holders += 1
        self.remove(name)
        if earlier is not None and before is None:
            return
        stored = _Stored(
            response,
            items=new + list(response["output"]),
            earlier=before[1] if before else None,
            nbytes=len(json_bytes(response)) + len(json_bytes(new)),
            router=router,
        )
        self._stored[name] = now, stored
        self._living += 1
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
            RequestFailed: 404, it is not here; 400, it is unfinished.
        """
        found = self._found(name, now)
        if _is_unfinished(found.response):
            raise bad_request(f"{name!r} is not finished yet", "previous_response_id")
        chain = list(found.chain())
        return [item for one in reversed(chain) for item in one.items]

    @property
    def routers(self) -> set[str]:
        """Those that make the unfinished ones."""
        return {one.router for _, one in self._stored.values() if _is_unfinished(one.response)}

    def lose(self, router: str, *, now: float) -> None:
        """What a router that has died was making has failed."""
        lost = RequestFailed(503, "router_lost", _LOST)
        for _, one in list(self._stored.values()):
            if one.router == router and _is_unfinished(one.response):
                self.put(failed(one.response, lost), [], None, now=now)

    def remove(self, name: str) -> bool:
        """Forget a response; returns whether it was here."""
        found = self._stored.pop(name, None)
        if found is not None:
            self._let_go(found[1])
        return found is not None

    def _let_go(self, stored: _Stored) -> None:
        for one in stored.chain():
            one.holders -= 1
            if one.holders:
                return
            self._living -= 1
            self.nbytes -= one.nbytes

    def _found(self, name: str, now: float) -> _Stored:
        self._drop(now)
        if name not in self._stored:
            message = (
                f"Response with id {name!r} not found. It was never stored, was deleted, or is "
                "older than what the router keeps: send all of its items as input."
            )
            raise RequestFailed(404, "response_not_found", message, param="previous_response_id")
        stored = self._stored[name][1]
        self._use(stored, now)
        return stored

    def _use(self, used: _Stored, now: float) -> None:
        """What a response goes on from is kept longer than it is."""
        for one in used.chain():
            name = str(one.response["id"])
            # A client may choose an id twice.
            if name in self._stored and self._stored[name][1] is one:
                self._stored[name] = now, one
                self._stored.move_to_end(name)

    def _drop(self, now: float) -> None:
        while self._stored:
            name, (used, _) = next(iter(self._stored.items()))
            many = self._living > self._max_responses or self.nbytes > self._max_bytes
            if not many and used > now - self._idle_s:
                return
            self.remove(name)


def failed(response: dict[str, Any], failure: RequestFailed) -> dict[str, Any]:
    """An unfinished response that will not be made any more."""
    error = failure.body["error"]
    told = {"code": error.get("type") or failure.kind, "message": error.get("message")}
    return {**response, "status": "failed", "error": told}


def _is_unfinished(response: dict[str, Any]) -> bool:
    return response.get("status") in UNFINISHED
