"""The token journal: what the router knows of one choice of an open answer.

It holds every token id with its behaviour logprob and policy version as soon as the client
could see it, so the answer can go on on another replica when this one dies.
"""

from typing import Any

from services.router.errors import UpstreamBroken

Span = tuple[int, int, int, str]
"""`(policy_version, start, end, replica_id)` over response tokens."""

_NO_LOGPROB = -9999.0
"""What vLLM sends for a logprob that it does not have."""


class ChoiceJournal:
    """Tokens, logprobs, policy spans and text of one choice.

    Attributes:
        index: the choice's index in the answer.
        token_ids: response tokens so far, length T.
        logprobs: behaviour logprobs, natural log, length T.
        finish_reason: None while tokens are still to come.
        stop_reason: the stop string or stop token id that ended it, else None.
        segments: upstream requests begun for it.
        entries: logprob entries as the client gets them, length T, if they are kept.
        visible: the client has been shown something of it.
        settled: nothing more will come, neither tokens nor text.
    """

    __slots__ = (
        "_base",
        "_closed",
        "_keep_entries",
        "_label",
        "_labels",
        "_open",
        "_parts",
        "_replica",
        "entries",
        "finish_reason",
        "index",
        "logprobs",
        "segments",
        "settled",
        "stop_reason",
        "token_ids",
        "visible",
    )

    def __init__(self, index: int, *, keep_entries: bool = False) -> None:
        self.index, self._keep_entries = index, keep_entries
        self.segments = 0
        self.visible = False
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

    def begin_segment(self, replica_id: str) -> None:
        """The tokens that follow come from a new upstream request."""
        self._closed += self._open
        self._open, self._label, self._labels = [], "", 0
        self._base, self._replica = len(self.token_ids), replica_id
        self.segments += 1

    def take(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        """Write down the tokens of one upstream chunk, all of them or none.

        Returns:
            The chunk's logprob entries, one per token, in OpenAI's chat shape.

        Raises:
            UpstreamBroken: a token without logprob or policy version, or an aborted choice.
        """
        tokens = item.get("token_ids") or []
        entries = (item.get("logprobs") or {}).get("content") or []
        if tokens:
            if len(entries) != len(tokens):
                raise UpstreamBroken("malformed", f"{len(tokens)} tokens, {len(entries)} logprobs")
            logprobs = [entry["logprob"] for entry in entries]
            if _NO_LOGPROB in logprobs:
                raise UpstreamBroken("unlabelled", "a token came without its logprob")
            self._label_tokens(item.get("weight_versions"), len(self.token_ids) + len(tokens))
            self.token_ids += tokens
            self.logprobs += logprobs
            if self._keep_entries:
                self.entries += entries
        finish = item.get("finish_reason")
        if finish in ("abort", "error"):
            raise UpstreamBroken(finish)
        if finish is not None:
            self.finish_reason, self.stop_reason = finish, item.get("stop_reason")
        return entries

    def _label_tokens(self, spans: Any, end: int) -> None:
        """Take the cumulative version spans of this segment, ending at token `end`."""
        if not spans or self._base + spans[-1]["end"] != end:
            raise UpstreamBroken("unlabelled", f"versions {spans!r} do not cover {end} tokens")
        if len(spans) == self._labels and spans[-1]["version"] == self._label:
            version, start, _, replica = self._open[-1]
            self._open[-1] = (version, start, end, replica)
            return
        starts = [0, *(span["end"] for span in spans)]
        if any(span["start"] != start for span, start in zip(spans, starts, strict=False)):
            raise UpstreamBroken("unlabelled", f"versions {spans!r} leave gaps")
        self._open = [
            (_version(s["version"]), self._base + s["start"], self._base + s["end"], self._replica)
            for s in spans
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


def _version(label: Any) -> int:
    try:
        return int(label)
    except (TypeError, ValueError):
        raise UpstreamBroken("unlabelled", f"policy version {label!r} is no number") from None


def _clipped(spans: list[Span], count: int) -> list[Span]:
    return [(v, start, min(end, count), r) for v, start, end, r in spans if start < count]
