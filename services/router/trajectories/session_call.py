"""One call's part in its session."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from services.protocol.rollout_server import RecordedStart
from services.protocol.session import CutReason
from services.router.answering.journal import ChoiceJournal, Piece
from services.router.answering.open_request import OpenRequest
from services.router.request.client_request import ClientRequest
from services.router.request.fixed_settings import FixedSettings
from services.router.trajectories.history import History
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.trajectories.trajectory_tree import RecordedCall, RecordedChoice


class SessionCall:
    """Records a call, if its session is recorded; an asynchronous context manager.

    A call counts when its last token is there, before the client can know it: so the next
    call, or `finish`, always finds it recorded.

    Args:
        sessions: all recorded sessions.
        ask: the call.
        goes_on: whether its prompt is to begin with the recorded tokens of its conversation.

    Raises:
        RequestFailed: on entering, if the session takes no calls.

    Attributes:
        fixed: what holds for the call, whatever it says.
        start: the recorded tokens that its prompt begins with; None: there are none.
    """

    def __init__(self, sessions: SessionRecords, ask: ClientRequest, *, goes_on: bool) -> None:
        self._sessions, self._session = sessions, ask.session
        self._number: int | None = None
        self._cut: CutReason | None = None
        self._history: History | None = None
        if goes_on and ask.endpoint == "tokens":
            self._cut = "api"  # it has a prompt of its own
        elif goes_on and ask.session is not None and ask.is_chat:
            self._history = History.of(ask.body)
        self.fixed: FixedSettings | None = None
        self.start: RecordedStart | None = None

    async def __aenter__(self) -> Self:
        begun = await self._sessions.begin(self._session, self._history)
        if begun is not None:
            self._number, self.fixed = begun.number, begun.fixed
            if isinstance(begun.start, RecordedStart):
                self.start = begun.start
            else:
                self._cut = begun.start or self._cut
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
        call = None if request is None else self._recorded(request)
        await self._sessions.end(self._session, number, call)

    def _recorded(self, request: OpenRequest) -> RecordedCall | None:
        choices = [_choice(journal) for journal in request.journals if journal.token_ids]
        if not choices:
            return None
        return RecordedCall(
            prompt_token_ids=request.prompt_token_ids,
            choices=choices,
            history=self._history or History.of(request.ask.body),
            cut=request.cut or self._cut,
        )


def _choice(journal: ChoiceJournal) -> RecordedChoice:
    plain = {"role": "assistant", "content": journal.text}
    return RecordedChoice(
        token_ids=journal.token_ids,
        logprobs=journal.logprobs,
        spans=journal.spans,
        finish_reason=journal.finish_reason or "",
        text=journal.text,
        message=None if journal.hides_calls else journal.message or plain,
    )
