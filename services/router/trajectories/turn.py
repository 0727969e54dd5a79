"""One recorded answer of a session."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from services.protocol.session import CallKind
from services.router.answering.journal import Span
from services.router.trajectories.history import HistoryMark


@dataclass(frozen=True, kw_only=True)
class RecordedChoice:
    """One finished answer: at least one token, each with its logprob, covered by spans."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    finish_reason: str
    text: str


class Turn:
    """One answer: the tokens put before it since the answer it goes on from, and its own.

    It never changes, so other threads may read it.

    Attributes:
        put: the tokens before it; one array for all answers to one prompt.
        sampled: its own tokens.
        depth: tokens up to its end.
        turns: answers up to it, itself included.
    """

    __slots__ = (
        "depth",
        "finish_reason",
        "kind",
        "logprobs",
        "mark",
        "parent",
        "put",
        "sampled",
        "spans",
        "text",
        "turns",
    )

    def __init__(
        self,
        choice: RecordedChoice,
        *,
        put: "array[int]",
        parent: "Turn | None",
        kind: CallKind,
        mark: HistoryMark,
    ) -> None:
        begin: int = parent.depth if parent else 0
        self.turns: int = parent.turns + 1 if parent else 1
        self.parent, self.kind, self.mark, self.put = parent, kind, mark, put
        self.sampled, self.logprobs = array("i", choice.token_ids), array("d", choice.logprobs)
        self.spans = tuple(choice.spans)
        self.finish_reason, self.text = choice.finish_reason, choice.text
        self.depth: int = begin + len(self.put) + len(self.sampled)

    def begins(self, prompt: "array[int]") -> bool:
        """Whether its tokens stand in `prompt` where they stand in the tree."""
        own = self.depth - len(self.sampled)
        return (
            self.depth <= len(prompt)
            and prompt[own : self.depth] == self.sampled
            and prompt[own - len(self.put) : own] == self.put
        )
