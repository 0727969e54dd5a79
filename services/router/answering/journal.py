"""The token journal: what the router knows of one choice of an open answer.

It holds every token id with its behaviour logprob and policy version as soon as the client
could see it, so the answer can go on on another replica when this one dies.
"""

from dataclasses import dataclass
from typing import Any

from services.router.errors import UpstreamBroken
from services.router.request.client_request import ClientRequest

Span = tuple[int, int, int, str]
"""`(policy_version, start, end, replica_id)` over response tokens."""

_NO_LOGPROB = -9999.0
"""What vLLM sends for a logprob that it does not have."""

_BROKEN = ("abort", "error")
"""Finish reasons of a choice that goes on elsewhere."""


class Diverged(Exception):
    """A replay made another token than the one in the journal."""


@dataclass(frozen=True, slots=True)
class NewTokens:
    """What one upstream chunk added to a journal.

    Attributes:
        token_ids: the new tokens.
        entries: their logprob entries, in OpenAI's chat shape.
        replayed: tokens before them that the journal had already.
    """

    token_ids: list[int]
    entries: list[dict[str, Any]]
    replayed: int = 0


class ChoiceJournal:
    """Tokens, logprobs, policy spans and text of one choice.

    Args:
        index: the choice's index in the answer.
        keep_entries: keep logprob entries.
        keep_logprobs: keep logprobs; without them none need come.
        streamed: the client gets what `take` returns; else what is kept here.
        end_tokens: where end-of-sequence tokens of the model are added.

    Attributes:
        index: the choice's index in the answer.
        token_ids: response tokens so far, length T.
        logprobs: behaviour logprobs, natural log, length T; none if they are not kept.
        finish_reason: None while tokens are still to come.
        stop_reason: the stop string or stop token id that ended it, else None.
        segments: upstream requests begun for it.
        entries: logprob entries as the client gets them, length T, if they are kept.
        visible: the client has been shown something of it.
        parsed: its message is parsed from its tokens (`answer_parser`).
        message: the parsed message, whole once the choice is settled.
        hides_calls: the message may have fewer tool calls than the tokens.
        reasoning_tokens: how many tokens are reasoning, as far as they were counted; None: the
            replica has no reasoning parser.
        settled: nothing more will come, neither tokens nor text.
    """

    def __init__(
        self,
        index: int,
        *,
        keep_entries: bool = False,
        keep_logprobs: bool = True,
        streamed: bool = False,
        end_tokens: set[int] | None = None,
    ) -> None:
        self.index, self._keep_entries = index, keep_entries
        self._keep_logprobs, self._streamed = keep_logprobs, streamed
        self._end_tokens = set() if end_tokens is None else end_tokens
        self.segments = 0
        self.visible = self.parsed = self.hides_calls = False
        self.message: dict[str, Any] | None = None
        self.reasoning_tokens: int | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all tokens: the choice starts again from the prompt."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.entries: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.settled = False
        self._parts: list[str] = []
        self._closed: list[Span] = []
        self._open: list[Span] = []
        self._base, self._replica, self._label, self._labels = 0, "", "", 0
        self._cut = self._unseen = 0

    def begin_segment(self, replica_id: str, *, replay: bool = False) -> None:
        """The tokens that follow come from a new upstream request.

        Args:
            replica_id: the replica that makes them.
            replay: the request starts at the prompt and makes the known tokens once more;
                they keep the logprobs and versions that they were shown with.
        """
        self._closed += self._open
        self._open, self._label, self._labels = [], "", 0
        self._cut = len(self.token_ids)
        self._base, self._unseen = (0, self._cut) if replay else (self._cut, 0)
        self._replica = replica_id
        self.segments += 1

    def take(self, item: dict[str, Any]) -> NewTokens:
        """Write down the tokens of one upstream chunk, all of them or none.

        Returns:
            The chunk's tokens that are new.

        Raises:
            UpstreamBroken: the chunk is not what vLLM sends, has a token without logprob or
                policy version, or an aborted choice.
            Diverged: a replayed token is another one than before.
        """
        try:
            new = self._take(item)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UpstreamBroken("malformed", repr(error)) from None
        if self.finish_reason == "stop" and self.stop_reason is None and self.token_ids:
            self._end_tokens.add(self.token_ids[-1])
        return new

    def _take(self, item: dict[str, Any]) -> NewTokens:
        finish = item.get("finish_reason")
        if finish in _BROKEN and self._streamed:
            # Nothing of the chunk would be returned: its tokens are made again.
            raise UpstreamBroken(finish)
        tokens, replayed = item.get("token_ids") or [], 0
        entries = (item.get("logprobs") or {}).get("content") or []
        if tokens:
            logprobs = _logprobs(entries, len(tokens)) if self._keep_logprobs else []
            replayed = self._compare(tokens)
            tokens, entries = tokens[replayed:], entries[replayed:]
            end = len(self.token_ids) - self._unseen + len(tokens)
            self._label_tokens(item.get("weight_versions"), end)
            self.token_ids += tokens
            self.logprobs += logprobs[replayed:]
            if self._keep_entries:
                self.entries += entries
        if finish in _BROKEN:
            raise UpstreamBroken(finish)
        if finish is not None:
            if self._unseen:
                raise Diverged(f"the replay ended {self._unseen} tokens earlier")
            self.finish_reason, self.stop_reason = finish, item.get("stop_reason")
        return NewTokens(tokens, entries, replayed)

    def _compare(self, tokens: list[int]) -> int:
        """How many of `tokens` are replayed ones; they must equal those of the journal."""
        count = min(self._unseen, len(tokens))
        at = len(self.token_ids) - self._unseen
        if tokens[:count] != self.token_ids[at : at + count]:
            raise Diverged(f"the replay differs after {at} tokens")
        self._unseen -= count
        return count

    def _label_tokens(self, spans: Any, end: int) -> None:
        """Take the cumulative version spans of this segment, ending at token `end`.

        Tokens before the cut keep the versions that they have.
        """
        if not spans or self._base + spans[-1]["end"] != end:
            raise UpstreamBroken("unlabelled", f"versions {spans!r} do not cover {end} tokens")
        if self._open and len(spans) == self._labels and spans[-1]["version"] == self._label:
            version, start, _, replica = self._open[-1]
            self._open[-1] = (version, start, end, replica)
            return
        starts = [0, *(span["end"] for span in spans)]
        if any(span["start"] != start for span, start in zip(spans, starts, strict=False)):
            raise UpstreamBroken("unlabelled", f"versions {spans!r} leave gaps")
        self._open = [
            (
                _version(span["version"]),
                max(self._cut, self._base + span["start"]),
                self._base + span["end"],
                self._replica,
            )
            for span in spans
            if self._base + span["end"] > self._cut
        ]
        self._labels, self._label = len(spans), spans[-1]["version"]

    def add_text(self, text: str) -> None:
        """More of the decoded answer."""
        if text:
            self._parts.append(text)

    @property
    def text(self) -> str:
        """The decoded answer so far, as far as the client may see it."""
        return "".join(self._parts)

    def replace_text(self, text: str) -> None:
        """Set the whole decoded answer."""
        self._parts = [text]

    def keep_tokens(self, count: int) -> None:
        """Drop the tokens after the first `count`: they came after the answer's end."""
        del self.token_ids[count:], self.logprobs[count:], self.entries[count:]
        self._closed = _clipped(self._closed, count)
        self._open = _clipped(self._open, count)

    @property
    def spans(self) -> list[Span]:
        """Policy spans that cover all tokens in order."""
        return self._closed + self._open


def _logprobs(entries: list[dict[str, Any]], tokens: int) -> list[float]:
    if len(entries) != tokens:
        raise UpstreamBroken("malformed", f"{tokens} tokens, {len(entries)} logprobs")
    logprobs = [entry["logprob"] for entry in entries]
    if _NO_LOGPROB in logprobs:
        raise UpstreamBroken("unlabelled", "a token came without its logprob")
    return logprobs


def _version(label: Any) -> int:
    try:
        return int(label)
    except (TypeError, ValueError):
        raise UpstreamBroken("unlabelled", f"policy version {label!r} is no number") from None


def _clipped(spans: list[Span], count: int) -> list[Span]:
    return [(v, start, min(end, count), r) for v, start, end, r in spans if start < count]


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
        shows_tokens = ask.shows_tokens or journal.parsed
        if ask.streams_tokens and (text or (shows_tokens and new.token_ids)):
            journal.visible = True
        made = len(journal.token_ids)
        return cls(journal, text, new.token_ids, new.entries, journal.settled, made)
