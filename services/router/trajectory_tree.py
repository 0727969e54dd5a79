"""The calls of one session as trajectories: pure, by token ids alone.

A call goes on from an earlier answer if its prompt begins with that answer's prompt and
tokens, one for one. Answers therefore form trees, and every leaf ends one trajectory.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from services.protocol.session import CallKind, SessionTrajectory
from services.router.history import History
from services.router.journal import Span


@dataclass(frozen=True, kw_only=True)
class RecordedChoice:
    """One finished answer: at least one token, each with its logprob, covered by spans."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    finish_reason: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One finished call.

    Attributes:
        prompt_token_ids: the whole rendered prompt.
        choices: its answers, several with `n` > 1.
        history: what the client sent, to tell why a prompt goes on from no earlier answer.
    """

    prompt_token_ids: Sequence[int]
    choices: Sequence[RecordedChoice]
    history: History


class _Turn:
    """One answer: the tokens put before it since the answer it goes on from, and its own."""

    __slots__ = (
        "depth",
        "finish_reason",
        "heir",
        "kind",
        "logprobs",
        "mark",
        "parent",
        "put",
        "sampled",
        "spans",
        "text",
        "turns",
        "weight",
    )

    def __init__(
        self, call: RecordedCall, choice: RecordedChoice, parent: "_Turn | None", kind: CallKind
    ) -> None:
        begin: int = parent.depth if parent else 0
        self.turns: int = parent.turns + 1 if parent else 1
        self.parent, self.kind, self.mark = parent, kind, call.history.mark
        self.put = array("i", call.prompt_token_ids[begin:])
        self.sampled, self.logprobs = array("i", choice.token_ids), array("d", choice.logprobs)
        self.spans = tuple(choice.spans)
        self.finish_reason, self.text = choice.finish_reason, choice.text
        self.depth: int = begin + len(self.put) + len(self.sampled)
        self.weight = 0
        self.heir: _Turn | None = None

    def begins(self, prompt: "array[int]") -> bool:
        """Whether its tokens stand in `prompt` where they stand in the tree."""
        own = self.depth - len(self.sampled)
        return (
            self.depth <= len(prompt)
            and prompt[own : self.depth] == self.sampled
            and prompt[own - len(self.put) : own] == self.put
        )


class TrajectoryTree:
    """Everything that one session recorded.

    Attributes:
        tokens: token ids kept.
    """

    def __init__(self) -> None:
        self._turns: list[_Turn] = []  # parents before children
        self._children: dict[_Turn | None, list[_Turn]] = {}
        self.tokens = 0

    def record(self, call: RecordedCall) -> CallKind:
        """Add a call with at least one answer and say how it joined."""
        parent = self._deepest(array("i", call.prompt_token_ids))
        kind = self._kind(call, parent)
        for choice in call.choices:
            turn = _Turn(call, choice, parent, kind)
            self._turns.append(turn)
            self._children.setdefault(parent, []).append(turn)
            self.tokens += len(turn.put) + len(turn.sampled)
        return kind

    def trajectories(self) -> list[SessionTrajectory]:
        """One for each leaf; every sampled token has mask 1 in exactly one of them.

        Answers that several have in common count to the one that samples most after them.
        """
        self._choose_heirs()
        return [_trajectory(turn) for turn in self._turns if turn.heir is None]

    def _deepest(self, prompt: "array[int]") -> _Turn | None:
        found: _Turn | None = None
        ahead = list(self._children.get(None, ()))
        while ahead:
            turn = ahead.pop()
            if turn.begins(prompt):
                ahead += self._children.get(turn, ())
                if found is None or turn.depth > found.depth:
                    found = turn
        return found

    def _kind(self, call: RecordedCall, parent: _Turn | None) -> CallKind:
        if not self._turns:
            return "first"
        siblings = self._children.get(parent, [])
        if parent is not None and not siblings:
            return "extended"
        put = array("i", call.prompt_token_ids[parent.depth if parent else 0 :])
        if any(turn.put == put for turn in siblings):
            return "resampled"
        known = parent.mark.length if parent else 0
        if any(
            turn.mark.length > known and call.history.goes_on_from(turn.mark, turn.text)
            for turn in self._turns
        ):
            return "retokenized"
        return "branched" if parent else "other_history"

    def _choose_heirs(self) -> None:
        for turn in self._turns:
            turn.weight, turn.heir = len(turn.sampled), None
        for turn in reversed(self._turns):
            children = self._children.get(turn)
            if children:
                turn.heir = max(children, key=lambda child: child.weight)
                turn.weight += turn.heir.weight


def _trajectory(leaf: _Turn) -> SessionTrajectory:
    path, own = [leaf], leaf
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    while own.parent is not None and own.parent.heir is own:
        own = own.parent
    path.reverse()
    response: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    spans: list[Span] = []
    shared = 0
    for turn in path:
        put = turn.put if turn.parent else array("i")
        spans += _moved(turn.spans, len(response), len(put))
        response += [*put, *turn.sampled]
        logprobs += [*[0.0] * len(put), *turn.logprobs]
        mine = turn.turns >= own.turns
        mask += [0] * len(put) + [int(mine)] * len(turn.sampled)
        shared = shared if mine else len(response)
    return SessionTrajectory(
        prompt_token_ids=list(path[0].put),
        response_token_ids=response,
        behaviour_logprobs=logprobs,
        loss_mask=mask,
        spans=spans,
        finish_reason=leaf.finish_reason,
        text=leaf.text,
        begun_by=own.kind,
        calls=len(path),
        shared_tokens=shared,
    )


def _moved(spans: Sequence[Span], at: int, put: int) -> list[Span]:
    """Spans of an answer that begins after `at` + `put` tokens; the first takes in the `put`.

    What was put there was read, never sampled, by the policy of the span that follows.
    """
    moved = [(v, at + put + start, at + put + end, name) for v, start, end, name in spans]
    version, _, end, name = moved[0]
    return [(version, at, end, name), *moved[1:]]
