"""One call's part in its session."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.request.fixed_settings import FixedSettings
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.trajectories.trajectory_tree import History, RecordedCall, RecordedChoice


class SessionCall:
    """Records a call, if its session is recorded; an asynchronous context manager.

    A call counts when its last token is there, before the client can know it: so the next
    call, or `finish`, always finds it recorded.

    Raises:
        RequestFailed: on entering, if the session takes no calls.

    Attributes:
        fixed: what holds for the call, whatever it says.
    """

    def __init__(self, sessions: SessionRecords, session: str | None) -> None:
        self._sessions, self._session = sessions, session
        self._number: int | None = None
        self.fixed: FixedSettings | None = None

    async def __aenter__(self) -> Self:
        start = await self._sessions.begin(self._session)
        if start is not None:
            self._number, self.fixed = start.number, start.fixed
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(None)

    @property
    def recorded(self) -> bool:
        """Whether the session keeps this call."""
        return self._number is not None

    async def watched(self, request: OpenRequest) -> AsyncGenerator[Piece, None]:
        """The pieces of the request, and its record before the last of them."""
        async with aclosing(request.pieces()) as pieces:
            async for piece in pieces:
                if piece.finished and all(journal.settled for journal in request.journals):
                    await self._end(request)
                yield piece
        await self._end(request)

    async def _end(self, request: OpenRequest | None) -> None:
        if self._number is None or self._session is None:
            return
        number, self._number = self._number, None
        call = None if request is None else _recorded(request)
        await self._sessions.end(self._session, number, call)


def _recorded(request: OpenRequest) -> RecordedCall | None:
    choices = [
        RecordedChoice(
            token_ids=journal.token_ids,
            logprobs=journal.logprobs,
            spans=journal.spans,
            finish_reason=journal.finish_reason or "",
            text=journal.text,
        )
        for journal in request.journals
        if journal.token_ids
    ]
    if not choices:
        return None
    return RecordedCall(
        prompt_token_ids=request.prompt_token_ids,
        choices=choices,
        history=History.of(request.ask.body),
    )
