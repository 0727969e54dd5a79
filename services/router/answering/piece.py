"""What one upstream chunk adds to one choice of an answer."""

from dataclasses import dataclass
from typing import Any

from services.router.answering.journal import ChoiceJournal, NewTokens
from services.router.errors import UpstreamBroken
from services.router.request.client_request import ClientRequest


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of an answer.

    Attributes:
        journal: the choice; it may already know more than this piece shows.
        text: new visible text.
        token_ids: the new tokens.
        entries: their logprob entries, in OpenAI's chat shape.
        finished: this is the choice's last piece.
        made: tokens of the choice up to this piece's end.
        delta: what is new in the message of a chat whose replica parses answers, instead of
            `text`; None for all others.
    """

    journal: ChoiceJournal
    text: str
    token_ids: list[int]
    entries: list[dict[str, Any]]
    finished: bool
    made: int
    delta: dict[str, Any] | None = None

    @classmethod
    def of(cls, ask: ClientRequest, journal: ChoiceJournal, text: str, new: NewTokens) -> "Piece":
        """A piece about to be yielded; notes whether the client gets to see something."""
        shows_tokens = ask.logprobs or ask.return_token_ids or journal.parsed
        if ask.streams_tokens and (text or (shows_tokens and new.token_ids)):
            journal.visible = True
        made = len(journal.token_ids)
        return cls(journal, text, new.token_ids, new.entries, journal.settled, made)


def take(journal: ChoiceJournal, item: dict[str, Any], end_tokens: set[int]) -> NewTokens:
    """Write an upstream chunk into the journal and learn end-of-sequence tokens from it.

    Returns:
        The chunk's tokens that are new.

    Raises:
        Diverged: a replayed token is another one than before.
        UpstreamBroken: the chunk is not what vLLM sends, or lacks a label.
    """
    try:
        new = journal.take(item)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UpstreamBroken("malformed", repr(error)) from None
    if journal.finish_reason == "stop" and journal.stop_reason is None and journal.token_ids:
        end_tokens.add(journal.token_ids[-1])
    return new
