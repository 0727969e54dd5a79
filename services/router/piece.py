"""What one upstream chunk adds to one choice of an answer."""

from dataclasses import dataclass
from typing import Any

from services.router.client_request import ClientRequest
from services.router.errors import UpstreamBroken
from services.router.journal import ChoiceJournal


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of an answer.

    Attributes:
        journal: the choice; it may already know more than this piece shows.
        text: new visible text.
        entries: logprob entries of the new tokens, in OpenAI's chat shape.
        finished: this is the choice's last piece.
    """

    journal: ChoiceJournal
    text: str
    entries: list[dict[str, Any]]
    finished: bool

    @classmethod
    def of(
        cls, ask: ClientRequest, journal: ChoiceJournal, text: str, entries: list[dict[str, Any]]
    ) -> "Piece":
        """A piece about to be yielded; notes whether the client gets to see something."""
        if ask.streams_tokens and (text or (ask.logprobs and entries)):
            journal.visible = True
        return cls(journal, text, entries, journal.settled)


def take(
    journal: ChoiceJournal, item: dict[str, Any], end_tokens: set[int]
) -> list[dict[str, Any]]:
    """Write an upstream chunk into the journal and learn end-of-sequence tokens from it.

    Returns:
        The logprob entries of the chunk's tokens.

    Raises:
        UpstreamBroken: the chunk is not what vLLM sends, or lacks a label.
    """
    try:
        entries = journal.take(item)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UpstreamBroken("malformed", repr(error)) from None
    if journal.finish_reason == "stop" and journal.stop_reason is None and journal.token_ids:
        end_tokens.add(journal.token_ids[-1])
    return entries
