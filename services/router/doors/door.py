"""How one API reads a request and writes its answer; failover, sessions and limits lie below."""

from typing import Any, Protocol

from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.errors import RequestFailed


class AnswerWriter(Protocol):
    """Writes one request's answer, whole or as stream events."""

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream; every journal is settled."""

    def events(self, piece: Piece) -> bytes:
        """The stream events for a piece, empty when there is nothing to tell."""

    def ending(self) -> bytes:
        """What ends a stream, after the last piece."""

    async def keep(self) -> None:
        """Have what a later request may refer to; the client has not seen the answer's end.

        Raises:
            RequestFailed: it cannot be kept.
        """

    def tell_generated(self, failure: RequestFailed) -> None:
        """Add what there is of the answer to its error, but for what the client has already."""


class Door(Protocol):
    """One request's way in and out; made for each."""

    async def opened(self, body: Any) -> Any:
        """A client's parsed body with all that it refers to.

        Raises:
            RequestFailed: it refers to something that is not here.
        """

    def writer(self, request: OpenRequest) -> AnswerWriter:
        """What writes the answer."""

    def error(self, failure: RequestFailed) -> dict[str, Any]:
        """The body of a response that tells an error."""

    def error_events(self, failure: RequestFailed) -> bytes:
        """An error in a stream, which ends."""

    def passed_on(self, event: str) -> bytes:
        """An event of a replica's own stream."""

    def end_of_passed_on(self) -> bytes:
        """What follows the last of them."""
